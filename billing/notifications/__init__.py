"""Notifications to tenants: written with the change they report, then delivered by webhook and e-mail."""
