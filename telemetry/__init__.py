"""Reports what processes do: structured logs, Prometheus metrics, free disk space, and charts of results.

It is below all other packages, so what all processes need to run is here, too: how their tasks end.
"""
