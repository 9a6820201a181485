"""Manages how users authenticate: passwords, second factors, external identity providers."""
