"""Device code of sampling that `kernel.py` puts together."""
