"""The overview section: spend, usage, latency and adapters at a glance."""
