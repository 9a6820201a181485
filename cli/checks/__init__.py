"""Checks behind `rootstock check`: what a deployment's environment lacks, and which features are off.

Each check is a function from settings to findings. The command itself is `cli.check`.
"""
