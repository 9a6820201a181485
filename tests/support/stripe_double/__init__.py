"""A double of Stripe: an HTTP server that the stock SDK cannot tell from the real one, as far as it goes.

Stateful, form-encoded, with idempotency keys, meters and their summaries, subscriptions that end their month,
invoices that are paid or not, checkout, refunds, signed webhooks that repeat, fail and overtake each other;
faults on demand, and a clock that travels. `StripeDouble` runs it in a thread;
`python -m tests.support.stripe_double` in a process of its own.

It refuses what Stripe refuses (a meter event of 36 days ago, a key used for something else), and forgets what
Stripe forgets: identifiers and idempotency keys after a day.
"""

from tests.support.stripe_double.books import Books, Refused
from tests.support.stripe_double.faults import Fault
from tests.support.stripe_double.server import API_KEY, StripeDouble

__all__ = ["API_KEY", "Books", "Fault", "Refused", "StripeDouble"]
