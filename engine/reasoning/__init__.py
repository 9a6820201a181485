"""Follows a model's thinking: separates it from the answer, counts its tokens, and ends it at its budget."""
