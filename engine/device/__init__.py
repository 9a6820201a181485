"""Runs planned steps on a CPU or a GPU: batch state, model execution, sampling, scoring, CUDA graphs."""
