"""One scenario for both samplers: rows of every kind come and go while the device is a step ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.batch import StepResult
from engine.device.cpu_sampler import Sampler
from engine.device.gpu_sampler import DeviceSampler, LaunchedDraws
from engine.protocol import SamplingParams
from kernels.sampling import cases
from kernels.step_inputs import StepInputs

EOS = (2, 7)

KINDS = [
    SamplingParams(64, temperature=0.0),
    SamplingParams(64, temperature=0.8),
    SamplingParams(64, temperature=1.0, top_p=0.9),
    SamplingParams(64, temperature=1.3, top_k=40, top_p=0.95),
    SamplingParams(64, temperature=0.7, min_p=0.1, logprobs=0),
    SamplingParams(64, temperature=0.0, logprobs=3),
    SamplingParams(64, temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5),
    SamplingParams(64, temperature=1.0, repetition_penalty=1.3, logprobs=5),
    SamplingParams(64, temperature=0.9, logit_bias={3: 8.0, 11: -100.0}, top_k=20),
    SamplingParams(64, temperature=0.0, logit_bias={2: 100.0}, min_tokens=3),
    SamplingParams(64, temperature=1.0, min_tokens=4, stop_token_ids=(5,)),
    SamplingParams(64, temperature=0.0, min_tokens=2, ignore_eos=True, stop_token_ids=(9,)),
]
"""Every parameter, alone and with others."""


@dataclass
class Rig:
    """A device sampler and its inputs."""

    max_rows: int
    vocab_size: int
    device: torch.device | str = "cpu"
    inputs: StepInputs = field(init=False)
    sampler: DeviceSampler = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = StepInputs(self.device)
        self.sampler = DeviceSampler(self.inputs, self.max_rows, self.vocab_size, EOS, self.device)
        self.inputs.freeze()

    def launch(
        self, logits: torch.Tensor, rows: np.ndarray, lens: np.ndarray, at: np.ndarray | None = None
    ) -> LaunchedDraws:
        self.inputs.begin()
        prepared = self.sampler.prepare(rows, lens, at)
        self.inputs.send()
        return self.sampler.launch(prepared, logits.to(self.device))

    def draw(self, logits: torch.Tensor, rows: np.ndarray, lens: np.ndarray, **more) -> StepResult:
        return self.launch(logits, rows, lens, **more).result()


def both_over_many_steps(
    rig: Rig, num_steps: int, agree: Callable[[StepResult, StepResult], None]
) -> Sampler:
    """Rows of all kinds on both samplers, which must agree at every step.

    The device's results are read one step late; a row is released and taken by another kind now and then, and
    every third step some rows do not draw, so that rows and logits lie differently.
    """
    max_rows, vocab_size = rig.max_rows, rig.vocab_size
    there = Sampler(max_rows, vocab_size, EOS)
    random = np.random.default_rng(5)
    lens = np.zeros(max_rows, np.int64)

    def admit(row: int, kind: int) -> None:
        prompt = random.integers(0, vocab_size, 20).tolist()
        output = random.integers(0, vocab_size, kind % 3).tolist()
        lens[row] = len(output)
        for sampler in (there, rig.sampler):
            sampler.admit(row, KINDS[kind % len(KINDS)], 1000 + kind, prompt, output)

    for row in range(max_rows):
        admit(row, row)
    before: tuple[LaunchedDraws, StepResult] | None = None
    for step in range(num_steps):
        if step % 4 == 3:
            row = int(random.integers(max_rows))
            there.release(row)
            rig.sampler.release(row)
            admit(row, row + step)
        rows = random.permutation(max_rows)[: max_rows - 3 * (step % 3 == 2)]
        spare = max_rows - len(rows)
        logits = cases.logits(len(rows) + spare, vocab_size, seed=step)
        if step % 5 == 4:
            logits[1, 3], logits[2, 0] = torch.nan, torch.inf
        at = np.sort(random.permutation(max_rows)[: len(rows)]) if spare else np.arange(len(rows))
        launched = rig.launch(logits, rows, lens[rows], at)
        sampled = there.sample(logits[at], rows, lens[rows])
        expected = StepResult(sampled.token_ids.tolist(), sampled.logprobs, sampled.failed)
        lens[rows] += 1
        for place in sampled.failed:  # its request is over
            there.release(int(rows[place]))
            rig.sampler.release(int(rows[place]))
            admit(int(rows[place]), int(rows[place]) + step)
        if before is not None:
            agree(before[0].result(), before[1])
        before = launched, expected
    assert before is not None
    agree(before[0].result(), before[1])
    return there
