"""Computes prompts on one engine for requests that decode on another, and moves their keys and values."""
