"""Between a person's text and a base model's token ids: the tokenizer and the chat template.

Whoever has text for the engine uses it: the HTTP process for requests, calibration for a tenant's samples.
"""
