"""Serves the double over HTTP, in a thread, with authentication and injected faults."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import uvicorn

from examples.stripe_double import forms, pages
from examples.stripe_double.deliveries import Deliveries, Endpoint
from examples.stripe_double.faults import Fault
from examples.stripe_double.request_log import RequestLog
from examples.stripe_double.routes import Routes
from examples.stripe_double.state import State

API_KEY = "sk_test_double"
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class StripeDouble:
    """The server's state and its controls, safe to use from any thread."""

    def __init__(self, api_key: str = API_KEY) -> None:
        self.api_key = api_key
        self.kept: RequestLog | None = None
        """The file of recorded requests, if any."""
        self.books = State()
        self.routes = Routes(self.books)
        self.deliveries = Deliveries(self.books)
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        """Method and path of every request received."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def meters(self) -> Any:
        return self.routes.meters

    def travel_to(self, moment: datetime) -> None:
        self.books.travel_to(moment)

    def card(self, customer: str, works: bool) -> None:
        """Sets whether the customer's payments succeed from now on."""
        with self.books.lock:
            self.books.get(customer, "customer")["card"] = "ok" if works else "declined"

    def pay_checkout(self, session: str) -> None:
        with self.books.lock:
            self.routes.payments.pay_checkout(session)

    def fail(self, *faults: Fault) -> None:
        self.faults.extend(faults)

    def heal(self) -> None:
        self.faults.clear()

    def endpoint(self, url: str, secret: str) -> Endpoint:
        made = Endpoint(url, secret)
        self.deliveries.endpoints.append(made)
        return made

    # Remembering -------------------------------------------------------------------------------------------

    def remember(self, kept: RequestLog) -> None:
        """Replays the recorded requests, and records new ones from now on. Its time is the real one."""
        self.books.draws = kept.draws
        for one in kept.requests():
            self._take(one["method"], one["path"], one["form"], one["key"], one["at"])
        self.kept = kept

    def let_time_pass(self) -> None:
        """Runs the actions that are due by now."""
        with self.books.lock:
            self.books.stand_at(time.time())
            self.books.clock.hold(None)

    def ask(self, method: str, path: str, form: dict[str, Any], key: str | None = None) -> tuple[int, Any]:
        """Handles a request; returns status and body of the response."""
        if self.kept is None:
            return self._take(method, path, form, key, None)
        with self.books.lock:
            at = time.time()
            answered = self._take(method, path, form, key, at)
            if method != "GET":
                self.kept.note(at, method, path, form, key)
            return answered

    def _take(
        self, method: str, path: str, form: dict[str, Any], key: str | None, at: float | None
    ) -> tuple[int, Any]:
        with self.books.lock:
            if at is not None:
                self.books.stand_at(at)
            try:
                if path.startswith("/double/"):
                    return 200, self._control(path, form)
                return self.routes.answer(method, path, form, key)
            finally:
                if at is not None:
                    self.books.clock.hold(None)

    # HTTP --------------------------------------------------------------------------------------------------

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        body = await _body(receive)
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        self.requests.append((method, path))
        if path.startswith("/double/"):
            await _answer(send, *self.ask(method, path, json.loads(body or b"{}")))
            return
        if path.startswith(pages.PREFIX):
            told = forms.decode(body.decode())
            with self.books.lock:
                shown = pages.answer(self.books, self.ask, method, path, told)
            await _show(send, *shown)
            return
        fault = next((one for one in self.faults if one.befalls(method, path)), None)
        if fault is not None:
            fault.use()
            if fault.kind == "unreachable":
                await _cut(send)
                return
            if fault.kind in ("rate_limited", "error"):
                await _answer(send, *_SAID[fault.kind])
                return
        if headers.get("authorization") != f"Bearer {self.api_key}":
            await _answer(send, 401, {"error": {"type": "invalid_request_error", "message": "Invalid key"}})
            return
        form = forms.decode(body.decode() if method == "POST" else scope["query_string"].decode())
        status, answer = self.ask(method, path, form, headers.get("idempotency-key"))
        if fault is not None and fault.kind == "hangs":
            await asyncio.sleep(30)
        if fault is not None and fault.kind == "lost":
            await _cut(send)
            return
        await _answer(send, status, answer)

    def _control(self, path: str, told: dict[str, Any]) -> dict[str, Any]:
        """Handles the controls, for clients in another process."""
        if path == "/double/travel":
            self.travel_to(datetime.fromisoformat(told["to"]))
        elif path == "/double/card":
            self.card(told["customer"], told["works"])
        elif path == "/double/pay_checkout":
            self.pay_checkout(told["session"])
        elif path == "/double/fail":
            self.fail(Fault(**told))
        elif path == "/double/heal":
            self.heal()
        elif path == "/double/endpoint":
            self.endpoint(told["url"], told["secret"])
        return {"now": self.books.now(), "events": len(self.books.events)}

    @contextmanager
    def serving(self, listener: socket.socket | None = None) -> Iterator[StripeDouble]:
        """Serves on that socket, or a free port, in a thread, until the block ends."""
        listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(self, log_config=None, lifespan="off", access_log=False, loop="asyncio")
        config.timeout_graceful_shutdown = 1
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join(10)
            listener.close()


_SAID: dict[str, tuple[int, dict[str, Any]]] = {
    "rate_limited": (429, {"error": {"type": "rate_limit_error", "message": "Too many requests"}}),
    "error": (500, {"error": {"type": "api_error", "message": "An error occurred"}}),
}


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        (b"request-id", b"req_double"),
        (b"stripe-should-retry", b"false" if status in (400, 401, 402, 404) else b"true"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _show(send: Send, status: int, said: str) -> None:
    """Sends a page; with 303, a redirect."""
    headers = [(b"content-type", b"text/html; charset=utf-8")]
    if status == 303:
        headers, said = [(b"location", said.encode())], ""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said.encode()})


async def _cut(send: Send) -> None:
    """Announces more than it sends: the server then closes the connection, and the client gets no
    response.
    """
    headers = [(b"content-length", b"1000")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{", "more_body": True})
