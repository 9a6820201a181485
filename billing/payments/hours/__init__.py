"""The hours of usage that are still to be metered at the payment provider."""
