"""What the service can still take, and until when."""
