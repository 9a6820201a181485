"""A source of prompts whose blocks come when a test says so, and a writer into the strict runner's cache."""

from __future__ import annotations

from engine.null_runner import begin_history, extend_history
from engine.scheduling.prompt_fetches import ArrivedBlocks, FetchEnded, WantedPrompt
from tests.engine.plain.harness import Engine


class Source:
    """Connects itself to an engine."""

    def __init__(self, engine: Engine, min_tokens: int = 4, timeout_s: float = 1e9) -> None:
        self._engine = engine
        self.is_late = False
        self.cached_tokens = 0
        """Of every prompt, in the other engine's prefix cache."""
        self.asked: dict[str, WantedPrompt] = {}
        """Prompts whose last blocks have not come."""
        self.num_sent: dict[str, int] = {}
        """Blocks of each, from its first on, that are where they should be."""
        self.cancelled: list[str] = []
        self.num_under_way = 0
        """Messages with blocks that were neither written nor dropped."""
        self.num_connected = 1
        self.refusals: tuple[str, ...] = ()
        self.is_ordered = True
        """Whether steps launched from now on come after every write so far."""
        engine.scheduler.fetches.connect(self, self, min_tokens, timeout_s)

    # As a source.

    def ask(self, prompt: WantedPrompt) -> str | None:
        if self.is_late:
            return None
        fetch_id = f"f{len(self.num_sent)}"
        self.asked[fetch_id] = prompt
        self.num_sent[fetch_id] = prompt.first_block
        return fetch_id

    def cancel(self, fetch_id: str) -> None:
        self.cancelled.append(fetch_id)
        self.asked.pop(fetch_id, None)

    def taken(self, blocks: ArrivedBlocks) -> None:
        self.num_under_way -= 1

    # As a writer.

    def follow_steps(self) -> None:
        """Does nothing: the strict runner computes at launch."""

    def write(self, block_ids: list[int], data: list[list[int]]) -> None:
        self.is_ordered = False
        for block_id, cells in zip(block_ids, data, strict=True):
            self._engine.runner.kv[block_id] = list(cells)

    def precede_steps(self) -> None:
        self.is_ordered = True

    # By tests.

    def send(self, fetch_id: str, num_blocks: int = 1) -> None:
        """Sends a prompt's next blocks, and its end behind the last."""
        prompt, block_size = self.asked[fetch_id], self._engine.runner.block_size
        first = self.num_sent[fetch_id]
        total = len(prompt.token_ids) // block_size
        num_blocks = min(num_blocks, total - first)
        history = begin_history(prompt.adapter.digest if prompt.adapter else "")
        cells = []
        for token_id in prompt.token_ids:
            history = extend_history(history, [token_id])
            cells.append(history)
        data = [
            cells[place * block_size : (place + 1) * block_size] for place in range(first, first + num_blocks)
        ]
        self.num_under_way += 1
        self._engine.core.prompt_event(ArrivedBlocks(fetch_id, first, num_blocks, data))
        self.num_sent[fetch_id] += num_blocks
        if self.num_sent[fetch_id] == total:
            self.end(fetch_id)

    def end(self, fetch_id: str, cause: str = "") -> None:
        del self.asked[fetch_id]
        self._engine.core.prompt_event(FetchEnded(fetch_id, cause, self.cached_tokens))

    def send_all(self) -> None:
        for fetch_id in list(self.asked):
            self.send(fetch_id, 1000)
