"""Holds adapters inside the engine: the packed artifact, slots, the pools that kernels read, the loader."""
