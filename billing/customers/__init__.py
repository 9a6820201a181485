"""What tenants use and spend, seen side by side by the operator."""
