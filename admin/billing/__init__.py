"""The billing section: this month's cost, payment, balance and billing details."""
