"""What limits there are, and the rows that set them. Enforcing them is `tenants.quotas`' business."""
