"""Holds the base models that this process serves: for each, its engines, its tokenizer and its formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from api.grammars.checks import GrammarChecks
from engine.client import EngineClient, EngineGone
from engine.protocol import EngineInfo, EngineStats
from routing.replica_set import ReplicaSet
from tokenization.codec import TextCodec
from tokenization.reasoning.efforts import OfferedReasoning
from tokenization.tools.formats import ToolFormat


@dataclass(frozen=True, slots=True)
class BasePool:
    """A base model as this process serves it."""

    name: str
    engine: ReplicaSet
    """All engines of the base, as one."""
    text: TextCodec
    grammars: GrammarChecks | None = None
    """None where requests with a grammar are refused."""
    tool_format: ToolFormat | None = None
    """How the base writes tool calls; None: it has no tools."""
    reasoning: OfferedReasoning | None = None
    """How the base thinks before it answers; None: it does not."""

    def info(self) -> EngineInfo:
        """Returns what an engine said of itself. Raises EngineGone while none is connected and ready."""
        if self.engine.info is None or not self.engine.ready:
            raise EngineGone("the engine does not serve", self.engine.ready_in)
        return self.engine.info


class Pools:
    """The base models by name, the default one first."""

    def __init__(self, *pools: BasePool) -> None:
        assert pools, "a process serves at least one base model"
        self._pools = {pool.name: pool for pool in pools}
        self.default = pools[0]

    def __getitem__(self, base: str) -> BasePool:
        return self._pools[base]

    def __contains__(self, base: object) -> bool:
        return base in self._pools

    def __iter__(self) -> Iterator[BasePool]:
        return iter(self._pools.values())

    def __len__(self) -> int:
        return len(self._pools)

    async def start(self) -> None:
        """Begins to connect to the engines, and starts the checks of grammars."""
        for pool in self:
            await pool.engine.start()
            if pool.grammars is not None:
                await pool.grammars.start()

    async def close(self) -> None:
        """Ends the checks of grammars, then disconnects. The engines abort what is open."""
        for pool in self:
            if pool.grammars is not None:
                await pool.grammars.close()
            await pool.engine.close()

    @property
    def ready(self) -> bool:
        """Whether an engine of some base takes requests."""
        return any(pool.engine.ready for pool in self)

    def check_ready(self) -> None:
        """Raises EngineGone unless an engine of some base takes requests."""
        if not self.ready:
            self.default.info()

    def clients(self) -> Sequence[EngineClient]:
        """Returns the connections to all engines. They change as engines come and go."""
        return [client for pool in self for client in pool.engine.clients]

    def latest_stats(self) -> list[EngineStats]:
        """Returns the latest statistics of all engines."""
        return [stats for pool in self for stats in pool.engine.latest_stats()]
