"""Records of requests that carry an idempotency key, and of their responses, in Redis for a day."""
