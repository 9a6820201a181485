"""Wraps one socket of a client to an engine, from connect to its first fault.

The socket never reconnects; a monitor reports when it broke.
"""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.transport.curve import Address
from engine.transport.silence import Silence

NEVER = 7 * 24 * 3600 * 1000
"""Milliseconds."""

_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)  # numbers: arithmetic on flags makes objects of them
_LOST_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Connection:
    """One DEALER socket and the monitor that reports its fault."""

    def __init__(self, context: zmq.Context, address: Address, now: float) -> None:
        self.socket = context.socket(zmq.DEALER)
        # A connection that breaks stays broken: see the module's docstring. Not -1, which means never, but
        # also makes libzmq discard unread messages of the peer. Sends never fail for a full queue; the
        # silence limit bounds what can queue up for an engine that does not read.
        self.socket.setsockopt(zmq.RECONNECT_IVL, NEVER)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(
            zmq.RCVHWM, 1000
        )  # if this process blocks, the engine's side fills up and notices
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
        self.monitor = self.socket.get_monitor_socket(_LOST_EVENTS | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.opened_at = now
        self.silence = Silence(now)
        self.is_connected = False
        self.is_lost = False
        self.drain_is_seen = False
        address.secure(self.socket)
        self.socket.connect(address.endpoint)

    @property
    def has_message(self) -> bool:
        """Whether the socket has something to read. Cheaper than a receive that fails."""
        return bool(self.socket.getsockopt(_EVENTS) & _POLLIN)

    def poll_monitor(self) -> None:
        """Handles all events of the monitor."""
        while self.monitor.getsockopt(_EVENTS) & _POLLIN:
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_connected = True
            else:
                self.is_lost = True

    def close(self, linger: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger)
