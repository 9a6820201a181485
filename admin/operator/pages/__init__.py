"""What the operator's pages show."""
