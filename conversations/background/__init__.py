"""The queue of background responses: leases with fencing tokens, cancellation, and streamed events."""
