"""The service levels section: what a month promised and delivered."""
