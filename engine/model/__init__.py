"""Loads a base model and computes its forward pass: config, weights, quantization, rotary table, decoder."""
