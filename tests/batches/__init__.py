"""Tests of batches."""
