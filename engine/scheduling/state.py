"""Holds what the parts of a scheduler share: queue, running requests, slots, timing and prompt fetches."""

from __future__ import annotations

from dataclasses import dataclass

from engine.lora.slot_allocator import SlotAllocator
from engine.scheduling.fairness import FairQueue
from engine.scheduling.prompt_fetches import PromptFetches
from engine.scheduling.running import RunningRequests
from engine.scheduling.step_timing import StepTiming


@dataclass(frozen=True, slots=True, eq=False)
class SchedulerState:
    """One of each per scheduler; `StepPlanner` and `RequestTracker` both change them."""

    queue: FairQueue
    running: RunningRequests
    slot_allocator: SlotAllocator
    timing: StepTiming
    fetches: PromptFetches
