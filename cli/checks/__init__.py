"""Checks behind `rootstock check`: what a deployment's environment lacks, and which features are off."""
