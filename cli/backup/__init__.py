"""Backs up a service, restores it, and proves that its backups restore."""
