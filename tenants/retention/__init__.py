"""Says how long an organization's data is kept, what is on legal hold, and what was deleted."""
