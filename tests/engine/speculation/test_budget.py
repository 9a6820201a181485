"""Drafts are spent where they make tokens cheaper, by what steps took."""

from __future__ import annotations

from engine.speculation.acceptance import Acceptance
from engine.speculation.budget import PROBE_SECONDS, PROBE_STEPS, DraftBudget
from engine.speculation.suffixes import Guess


class Machine:
    """Steps that take `fixed` seconds and `each` for each token."""

    def __init__(self, fixed: float, each: float) -> None:
        self.now = 0.0
        self.fixed, self.each = fixed, each
        self.budget = DraftBudget(lambda: self.now)
        self.first_of_a_size = 0.0
        """Seconds that the first step of a size with drafts takes longer: kernels are compiled."""
        self.wait = 0.0
        """Seconds that every step with drafts takes longer."""
        self._seen: set[int] = set()

    def step(self, num_rows: int, num_drafts: int, num_known: int = 0) -> None:
        self.budget.note_step(num_rows, num_drafts, num_known)
        self.now += self.fixed + self.each * (num_rows + num_drafts + num_known)
        self.now += self.wait if num_drafts else 0.0
        if num_drafts and num_rows + num_drafts not in self._seen:
            self._seen.add(num_rows + num_drafts)
            self.now += self.first_of_a_size

    def choose(self, num_rows: int, chances: list[float], steps: int = 40) -> list[int]:
        found = []
        for _ in range(steps):
            found.append(self.budget.choose(num_rows, chances))
            self.step(num_rows, found[-1])
        return found


def test_steps_that_cost_the_same_with_more_tokens_get_all_drafts() -> None:
    assert Machine(0.1, 0.00001).choose(4, [0.9] * 20)[-1] == 20


def test_steps_that_cost_by_the_token_get_only_drafts_that_are_worth_one() -> None:
    machine = Machine(0.0001, 0.01)
    found = machine.choose(4, [0.9, 0.8, 0.3] * 4, steps=80)
    assert sum(found[-20:]) == 0
    # Between the two: the likely ones are taken, the others not.
    assert 0 < Machine(0.04, 0.005).choose(4, [0.95] * 4 + [0.05] * 16)[-1] <= 5


def test_the_first_step_of_a_size_says_nothing_about_later_ones() -> None:
    machine = Machine(0.004, 0.0001)
    machine.first_of_a_size = 0.5
    assert machine.choose(1, [0.9] * 6)[-10:] == [6] * 10
    assert machine.budget.placeholder_price(1, 6) < 0.05


def test_a_size_whose_first_steps_were_slow_is_tried_again() -> None:
    """Not so slow that they are left out, but slower than drafts are worth."""
    machine = Machine(0.004, 0.0001)
    machine.first_of_a_size = 0.009
    assert machine.choose(2, [0.6] * 6)[-10:] == [6] * 10


def test_unlikely_drafts_are_not_taken() -> None:
    assert set(Machine(0.01, 0.001).choose(8, [0.05] * 8)) == {0}


def test_nothing_is_drafted_before_a_step_without_was_measured_and_such_steps_are_measured_again() -> None:
    machine = Machine(0.1, 0.0001)
    found = machine.choose(4, [0.9] * 4, steps=round(3 * PROBE_SECONDS / 0.1))
    assert found[0] == 0
    assert 2 * PROBE_STEPS <= found[20:].count(0) <= 4 * PROBE_STEPS


def test_numbers_of_rows_near_those_measured_need_no_steps_without_drafts() -> None:
    machine = Machine(0.1, 0.0001)
    machine.choose(16, [0.9] * 8)
    assert machine.budget.choose(14, [0.9] * 8) == 8
    assert machine.budget.choose(1, [0.9] * 8) == 0


def test_a_step_with_drafts_is_known_to_be_waited_for_whatever_its_size() -> None:
    """It takes two thirds of a step longer than its tokens do: two drafts are worth less, many more."""
    machine = Machine(0.01, 0.0001)
    machine.wait = 0.007
    for most in (32, 12):
        assert machine.choose(8, [0.9] * most)[-1] == most
    assert machine.budget.choose(8, [0.9] * 2) == 0
    assert machine.budget.choose(8, [0.9] * 20) == 20


def test_steps_with_prompts_say_nothing_about_the_others() -> None:
    machine = Machine(0.01, 0.001)
    machine.choose(4, [0.9] * 4, steps=10)
    before = machine.budget.choose(4, [0.9] * 4)
    for _ in range(20):
        machine.step(4, 0, 5000)
        machine.step(4, 0)
    assert machine.budget.choose(4, [0.9] * 4) == before > 0


def test_acceptance_is_measured_by_tenant_and_adapter() -> None:
    acceptance = Acceptance()
    guess = Guess(12, [1, 2, 3], [1.0, 1.0, 0.5])
    before = acceptance.chances(("bolt", None), guess)
    for _ in range(50):
        acceptance.add(("acme", None), 12, 3, 0)
    assert acceptance.chances(("acme", None), guess)[0] < 0.1
    assert acceptance.chances(("bolt", None), guess) == acceptance.chances(("acme", "x"), guess) == before
    for _ in range(50):
        acceptance.add(("acme", None), 12, 3, 3)
    chances = acceptance.chances(("acme", None), guess)
    assert 0.8 < chances[0] <= 1
    assert chances[2] <= chances[1] / 2
