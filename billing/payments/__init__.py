"""Being paid, through a payment provider: customers, what they are metered, and what follows from a payment
that came or did not. Knows the provider by the protocol in `gateway` alone; Stripe's is
`billing.stripe_gateway`.
"""
