"""Runs engines on the hosts of a Ray cluster: `rootstock up --ray` and `rootstock join`.

Only `controller` imports Ray. Ray places engines and starts them again; requests and tokens do not pass
through it.
"""
