"""Opens the sockets on which engines listen."""

from __future__ import annotations

import zmq

from engine.transport.curve import ClientCheck, ServerKeys


def listen(
    context: zmq.Context,
    endpoint: str,
    keys: ServerKeys | None,
    *,
    send_hwm: int,
    max_message_bytes: int,
    purpose: str = "",
) -> tuple[zmq.Socket, ClientCheck | None]:
    """Returns a bound ROUTER socket, and what answers whether a client may connect, to be polled beside it.

    Args:
        keys: only clients that have one of these connect, encrypted; None: any, and nothing is encrypted.
        send_hwm: messages that wait for one client until a send to it fails; 0: no bound.
        purpose: follows the endpoint in the error's message.

    Raises: zmq.ZMQError when the endpoint cannot be bound (its name is in the message). The context is gone
        then.
    """
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.SNDHWM, send_hwm)
    socket.setsockopt(zmq.RCVHWM, 0)  # drained continuously
    socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
    socket.setsockopt(zmq.LINGER, 0)
    # A peer whose machine is gone sends no FIN: pings notice that and drop it, so that sends to it fail.
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
    check = None if keys is None else ClientCheck(context, keys)
    if check is not None:
        check.secure(socket)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        context.destroy(linger=0)
        raise zmq.ZMQError(error.errno, f"cannot listen on {endpoint}{purpose}: {error}") from error
    return socket, check
