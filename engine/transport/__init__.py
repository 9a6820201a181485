"""Connects API processes and the engine over ZeroMQ: both ends of the wire."""
