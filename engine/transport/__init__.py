"""The wire between API processes and the engine, over ZeroMQ: both ends of it."""
