"""Reports what processes do: structured logs, Prometheus metrics, free disk space, and charts of results."""
