"""Collects payments through a payment provider: customers, meter events, documents, dunning and webhooks.

The provider is known by the protocols in `gateway` alone, which
`billing.stripe_gateway` implements for Stripe.
"""
