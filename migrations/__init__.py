"""Alembic migrations. Each is small, reviewed by hand, and compatible with the release before it."""
