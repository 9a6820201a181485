"""The audit log section."""
