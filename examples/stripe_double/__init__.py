"""A double of Stripe for the demo and the tests: an HTTP server that the stock SDK can use like the real one.

It moves no money, and no process that serves imports it.

It is stateful and form-encoded, with idempotency keys, meters and their summaries, subscriptions whose months
end, invoices that are paid or not, checkout, refunds, signed webhooks that repeat, fail and arrive out of
order, faults on demand, and a clock that can be moved. `StripeDouble` runs it in a thread; `python -m
examples.stripe_double` in a separate process.

It rejects what Stripe rejects (a meter event of 36 days ago, a reused key with other parameters), and forgets
what Stripe forgets: identifiers and idempotency keys after a day.
"""

from examples.stripe_double.faults import Fault
from examples.stripe_double.server import API_KEY, StripeDouble
from examples.stripe_double.state import Refused, State

__all__ = ["API_KEY", "Fault", "Refused", "State", "StripeDouble"]
