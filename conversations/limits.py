"""Defines the limits on stored state, which bound the memory and time that one request can take."""

from __future__ import annotations

MAX_ITEMS = 2048
"""Items that a response can have in its context, and a conversation in all."""
MAX_BYTES = 8 * 1024 * 1024
"""Stored bytes of these items."""
MAX_TURNS = 512
"""Responses in a chain of `previous_response_id`."""
MAX_ADDED = 20
"""Items that one request can add to a conversation."""
MAX_UNFINISHED = 500
"""Background responses of a project that are queued or in progress."""
LOCK_SECONDS = 60.0
"""After which a conversation is free again when the process that generates for it has died."""
BACKGROUND_SECONDS = 24 * 3600.0
"""Longest time that a background response can wait and run; its conversation is locked as long."""
