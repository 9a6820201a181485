"""Manages how users authenticate: password changes and resets, second factors, external identity
providers.
"""
