"""Predicts step times, memory, waiting times, replicas and cost from a model and a load."""
