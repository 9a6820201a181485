"""Backs up a service (`rootstock backup`), restores it (`rootstock restore`), and proves that backups restore
(`rootstock backup drill`). See ADR 51.
"""
