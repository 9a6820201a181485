"""Simulates a cluster of replicas in virtual time: traffic, engines as fluids, routing policies, failures."""
