"""Converts between text and a base model's token ids: the tokenizer and the chat template.

The HTTP process uses it for requests, calibration for a tenant's samples.
"""
