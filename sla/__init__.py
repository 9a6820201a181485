"""Service levels: counts of served requests by tenant and tier, reports, objectives, alerts, incidents."""
