"""Adapters inside the engine: the packed artifact, the slots they live in, the pool kernels read, the loader."""
