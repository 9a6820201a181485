"""Accepts drafts by a seeded random process, whatever the logits say: for benchmarks of speed alone.

With random weights no guess is ever right, so the speed of an engine whose guesses are would stay unknown.
Here the drafter looks up and counts as the served one does and then proposes random tokens, the runner
verifies them as any drafts, and only the result of a step is changed: each draft is "drawn" with a fixed
chance. Times of steps are true, tokens mean nothing.

Nothing served can do this: it is put around the parts of an engine by the benchmark that built it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from engine.batch import Batch, LaunchedStep, StepResult
from engine.core import Runner
from engine.outputs import RunnerCounters
from engine.speculation.suffixes import Guess
from engine.speculation.texts import OpenText, Texts

TOKENS = (1, 2)
"""All that is drafted from texts, and what is drawn where a draft is refused. Of two tokens every run has
occurred before: lookups take as long as they ever do."""
NUM_RANDOM = 4093
"""Random tokens that are drafted, by turns."""
MATCH_LEN = 10
"""Of every guess: acceptance is measured by it, and starts at the highest estimate."""


@dataclass(frozen=True, slots=True)
class Process:
    """How many drafts a row is offered, and the chance of each that it is accepted if those before it are."""

    num_drafts: int
    chance: float
    seed: int = 1

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens that a row gains by a step with all drafts: those accepted, and one more."""
        return 1.0 + sum(self.chance**place for place in range(1, self.num_drafts + 1))


def process_of(tokens_per_step: float, num_drafts: int, seed: int = 1) -> Process:
    """Returns the process with a mean of so many tokens in a step with all drafts.

    Raises ValueError where no chance gives that.
    """
    if not 1.0 < tokens_per_step < num_drafts + 1:
        raise ValueError(
            f"{num_drafts} drafts give between 1 and {num_drafts + 1} tokens per step, "
            f"not {tokens_per_step:g}"
        )
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if Process(num_drafts, middle).tokens_per_step < tokens_per_step:
            low = middle
        else:
            high = middle
    return Process(num_drafts, high, seed)


class SyntheticTexts(Texts):
    """Texts that are indexed and searched as ever, and then followed by random tokens."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._num_drafts = process.num_drafts
        self._drafts = Random(process.seed).choices(TOKENS, k=NUM_RANDOM)

    def open(self, tenant: str, adapter_digest: str | None, token_ids: list[int]) -> OpenText:
        """Adds a text."""
        opened = super().open(tenant, adapter_digest, token_ids)
        return _SyntheticText(opened, self._num_drafts, self._drafts)


class _SyntheticText(OpenText):
    """A running request's text."""

    __slots__ = ("_drafts", "_num_drafts")

    def __init__(self, opened: OpenText, num_drafts: int, drafts: list[int]) -> None:
        super().__init__(opened.tenant, opened.index, opened.text)
        self._num_drafts = num_drafts
        self._drafts = drafts

    def guess(self, most: int) -> Guess:
        """Looks up what may follow, for the time that takes, and returns random tokens."""
        super().guess(most)
        num_drafts = min(most, self._num_drafts)
        # By where the text ends, as a lookup's are: it takes no longer than a text's own tokens do.
        begin = len(self.text.token_ids) % (NUM_RANDOM - num_drafts)
        return Guess(MATCH_LEN, self._drafts[begin : begin + num_drafts], [1.0] * num_drafts)


class ForcedAcceptance:
    """A runner around another one: it runs the same steps, and says of drafts what the process says."""

    def __init__(self, runner: Runner, process: Process) -> None:
        self._runner = runner
        self._chance = process.chance
        self._random = Random(process.seed)
        self.num_verified = 0
        """Rows with drafts, of all steps."""
        self.num_drafts = 0
        self.num_accepted = 0

    @property
    def depth(self) -> int:
        """The runner's."""
        return self._runner.depth

    @property
    def counters(self) -> RunnerCounters:
        """The runner's."""
        return self._runner.counters

    def launch(self, batch: Batch) -> LaunchedStep:
        """Launches the step as it is."""
        launched = self._runner.launch(batch)
        return _ForcedStep(launched, batch, self) if batch.drafted else launched

    def force(self, batch: Batch, result: StepResult) -> None:
        """Replaces what a step drew after drafts."""
        drafted = dict(batch.drafted)
        position = 0
        for share in batch.scheduled:
            if not share.samples:
                continue
            drafts = drafted.get(share.row, [])
            self.num_verified += bool(drafts)
            self.num_drafts += len(drafts)
            for place, token_id in enumerate(drafts, start=position):
                if self._random.random() < self._chance:
                    result.token_ids[place] = token_id
                    self.num_accepted += 1
                else:
                    result.token_ids[place] = TOKENS[token_id == TOKENS[0]]
                    break
            else:
                if drafts:  # all accepted: the draw behind them
                    result.token_ids[position + len(drafts)] = self._random.choice(TOKENS)
            position += len(drafts) + 1


class _ForcedStep:
    """A launched step."""

    def __init__(self, launched: LaunchedStep, batch: Batch, forced: ForcedAcceptance) -> None:
        self._launched = launched
        self._batch = batch
        self._forced = forced

    def fill_masks(self) -> None:
        """Fills the step's masks."""
        self._launched.fill_masks()

    def result(self) -> StepResult:
        """Waits for the step, and returns what the process accepts of its drafts."""
        result = self._launched.result()
        self._forced.force(self._batch, result)
        return result
