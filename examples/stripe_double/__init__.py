"""A double of Stripe for the demo and the tests: an HTTP server that the stock SDK takes for the real one.

No money moves through it, and no process that serves imports it.

Stateful, form-encoded, with idempotency keys, meters and their summaries, subscriptions that end their month,
invoices that are paid or not, checkout, refunds, signed webhooks that repeat, fail and overtake each other;
faults on demand, and a clock that travels. `StripeDouble` runs it in a thread;
`python -m examples.stripe_double` in a process of its own.

It refuses what Stripe refuses (a meter event of 36 days ago, a key used for something else), and forgets what
Stripe forgets: identifiers and idempotency keys after a day.
"""

from examples.stripe_double.books import Books, Refused
from examples.stripe_double.faults import Fault
from examples.stripe_double.server import API_KEY, StripeDouble

__all__ = ["API_KEY", "Books", "Fault", "Refused", "StripeDouble"]
