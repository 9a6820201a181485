"""Adapters inside the engine: the packed artifact, the slots, the pool that kernels read, the loader."""
