"""Refused requests: records of API calls that were answered with an error, for their tenant to look up."""
