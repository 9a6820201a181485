"""Sets up an engine to compute prompts for others, or to have its own computed by others, as settings say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import zmq

from engine.core import EngineCore, PromptEvent
from engine.gauges import EngineStats
from engine.prefill.copies import CacheCopies
from engine.prefill.exporting import PromptExporter
from engine.prefill.messages import CacheFormat, Greeting
from engine.prefill.sender import PromptSender
from engine.prefill.sources import PromptSources
from engine.settings import PrefillSettings
from engine.transport.curve import Address, KeyPair, ServerKeys


class Server(Protocol):
    """The engine's process, as far as prompts concern it."""

    engine_id: str

    def wake(self) -> None: ...

    def status(self) -> EngineStats | None: ...

    def at_close(self, close: Callable[[], None]) -> None: ...


def check_prefill(settings: PrefillSettings, tensor_parallel: int) -> None:
    """Raises ValueError for what does not go together, before anything is loaded."""
    if not settings.endpoint and not settings.sources:
        return
    if tensor_parallel > 1:
        raise ValueError(
            f"prompts are not moved between engines with tensor_parallel {tensor_parallel}: "
            "unset ROOTSTOCK_PREFILL_ENDPOINT and ROOTSTOCK_PREFILL_SOURCES, or set tensor_parallel to 1"
        )
    if settings.endpoint and settings.sources:
        raise ValueError(
            "ROOTSTOCK_PREFILL_ENDPOINT and ROOTSTOCK_PREFILL_SOURCES are both set: an engine computes "
            "prompts for others, or has its own computed; unset one"
        )


def set_up_prefill(
    core: EngineCore,
    settings: PrefillSettings,
    cache_format: CacheFormat,
    copies: CacheCopies,
    server: Server,
) -> None:
    """Connects a core to the other engines, until the server closes. Raises ValueError for a key that cannot
    be read or an address that cannot be used.
    """
    key_pairs = [] if settings.key_file is None else KeyPair.read_all(settings.key_file)

    def deliver(event: PromptEvent) -> None:
        core.prompt_event(event)
        server.wake()

    if settings.endpoint:
        clients = frozenset(pair.public for pair in key_pairs)
        keys = ServerKeys(key_pairs[0], clients) if key_pairs else None
        try:
            sender = PromptSender(
                settings.endpoint, server.engine_id, cache_format, copies, deliver, server.status, keys
            )
        except zmq.ZMQError as error:
            raise ValueError(str(error)) from error
        core.exporter = PromptExporter(core.scheduler, sender)
        server.at_close(sender.close)
        return
    addresses = [
        Address.shared(endpoint, key_pairs) if key_pairs else Address(endpoint)
        for endpoint in settings.source_endpoints
    ]
    greeting = Greeting(server.engine_id, cache_format)
    sources = PromptSources(addresses, greeting, copies, deliver, settings.max_wait_seconds)
    core.scheduler.fetches.connect(sources, copies, settings.min_tokens, settings.timeout_seconds)
    server.at_close(sources.close)
