"""Imports adapters' files from model hubs and S3 buckets, instead of uploads."""
