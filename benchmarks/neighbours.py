"""Measures how a tenant that sends twenty times its share affects its neighbours, on real engine processes.

    python -m benchmarks.neighbours --out benchmarks/results/cpu-epyc-2-cores/neighbours.json

A share is a twentieth of what the engine can do for requests that arrive at random times: four fifths of its
throughput with all rows full, which is measured first. Nine tenants send their share each, by Poisson
processes, and the tenth sends twenty shares, which is more than the engine can do. Measured are the nine:
their seconds to the first token, from the moment a request was due. The baseline is the same nine, request
for request, beside nine more like them: an engine as busy, on which no tenant takes more than its share.
Beside an idle engine any load looks bad, however well it is shared: a fuller step takes longer for every
request. The report also has what the nine see alone. A few FLEX requests come besides; the longest wait is
reported.

On two engines: the CPU's with the sapling base, and a null one of 256 rows whose steps take 20 ms and overlap
as a GPU's do. The noisy tenant has a process of its own. Three pairs of classes: the noisy tenant DEFAULT and
the nine PRIORITY; all DEFAULT; all PRIORITY, which a contract prevents: traffic over it is served as DEFAULT.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.report import write_report
from cli.local.redis import start_redis
from engine.client import EngineClient, EngineError, RequestRejected
from engine.protocol import PriorityClass, SamplingParams, Submit
from telemetry import logs

PRIORITY, DEFAULT, FLEX = PriorityClass
PAIRS = ((DEFAULT, PRIORITY), (DEFAULT, DEFAULT), (PRIORITY, PRIORITY))
"""The noisy tenant's class, and that of the others."""
NUM_OTHERS = 9
NOISE = 20
"""Shares that the noisy tenant sends; and how many there are."""
FLEX_WAIT_S = 3.0
FLEX_PER_SECOND = 1.0
GRACE_S = 8.0
"""For the last of the nine to end under the same load."""
LOAD = 0.8
"""Share of the rate with all rows full: about what random arrivals can use without a growing queue."""
HEAD_START_S = 1.0
"""Seconds by which the extra load starts earlier, so that its backlog exists."""
SAPLING = Path(__file__).resolve().parent.parent / "examples/sapling/weights/base"


@dataclass(frozen=True)
class Setup:
    """An engine, and the requests it is sent."""

    name: str
    environment: dict[str, str]
    prompt_len: int
    output_len: int
    rows: int
    vocab: int


SETUPS = {
    "null": Setup(
        "null, 256 rows, 20 ms a step, overlapped",
        {"ENGINE_NULL": "true", "ENGINE_NULL_STEP_SECONDS": "0.02", "ENGINE_NULL_DEPTH": "1"},
        prompt_len=64, output_len=64, rows=256, vocab=256,
    ),
    "sapling": Setup(
        "cpu, sapling int8, 32 rows, steps of 10 ms for priority",
        {
            "ENGINE_BASE": str(SAPLING),
            "DEVICE_DEVICE": "cpu",
            "DEVICE_QUANTIZATION": "int8",
            "ENGINE_PRIORITY_STEP_SECONDS": "0.01",
        },
        prompt_len=32, output_len=32, rows=32, vocab=256,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Sender:
    tenant: str
    priority: PriorityClass
    per_second: float


@dataclass(frozen=True)
class Phase:
    """What is sent for how long. The same tenants send at the same times in every one."""

    label: str
    seconds: float
    setup: Setup


@dataclass
class Sent:
    """What came of one process's requests."""

    waits: dict[str, list[float]] = field(default_factory=dict)
    """By tenant: seconds to the first token."""
    refused: dict[str, int] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)


@contextmanager
def running_engine(setup: Setup, folder: Path) -> Iterator[str]:
    """Runs an engine process of its own, with a Redis for its journal. Yields its endpoint."""
    redis = start_redis(folder, ephemeral=True)
    endpoint = f"ipc://{folder}/engine.sock"
    settings = setup.environment | {
        "ENGINE_ENDPOINT": endpoint,
        "ENGINE_REDIS_URL": redis.url,
        "ENGINE_DATA_DIR": str(folder),
        "ENGINE_MAX_ROWS": str(setup.rows),
        "ENGINE_FLEX_WAIT_SECONDS": str(FLEX_WAIT_S),
    }
    environment = os.environ | {f"ROOTSTOCK_{name}": value for name, value in settings.items()}
    try:
        with (folder / "engine.log").open("wb") as log:
            command = [sys.executable, "-m", "engine.main"]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield endpoint
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    finally:
        redis.stop()


# One process's requests -------------------------------------------------------------------------------------


def request(setup: Setup, sender: Sender, name: str) -> Submit:
    random = Random(name)
    return Submit(
        request_id=name,
        tenant=sender.tenant,
        prompt_ids=[random.randrange(setup.vocab) for _ in range(setup.prompt_len)],
        sampling=SamplingParams(max_tokens=setup.output_len, temperature=0.0, ignore_eos=True),
        priority=sender.priority,
        submitted_at=time.time(),
    )


async def ask(client: EngineClient, submit: Submit, due: float, sent: Sent) -> None:
    tenant = submit.tenant
    first = True
    try:
        async for chunks in client.submit(submit):
            if first and any(chunk.token_ids for chunk in chunks):
                sent.waits.setdefault(tenant, []).append(time.perf_counter() - due)
                first = False
        sent.finished[tenant] = sent.finished.get(tenant, 0) + 1
    except RequestRejected:
        sent.refused[tenant] = sent.refused.get(tenant, 0) + 1
    except EngineError:
        pass  # the noisy tenant's process ends while requests of its go on


async def send(client: EngineClient, phase: Phase, sender: Sender, seconds: float, sent: Sent) -> None:
    """Sends at random times, whatever becomes of earlier requests."""
    random = Random(sender.tenant)
    begin = due = time.perf_counter()
    tasks: list[asyncio.Task[None]] = []
    while (due := due + random.expovariate(sender.per_second)) < begin + seconds:
        await asyncio.sleep(due - time.perf_counter())
        # Another name is another prompt: nothing is found in the prefix cache.
        submit = request(phase.setup, sender, f"{sender.tenant}-{phase.label}-{len(tasks)}")
        tasks.append(asyncio.create_task(ask(client, submit, due, sent)))
    await asyncio.gather(*tasks)


def send_all(endpoint: str, phase: Phase, senders: list[Sender], seconds: float, pipe: Connection) -> None:
    """A process's main: send once told to, and say what came of it, when all has ended or when told again."""

    async def run() -> Sent:
        told: asyncio.Queue[object] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: told.put_nowait(pipe.recv()))
        logs.configure("benchmark", "warning")
        client = EngineClient(endpoint, f"bench-{os.getpid()}")
        await client.start()
        async with asyncio.timeout(120):
            await client.wait_ready()
        pipe.send("ready")
        await told.get()
        sent = Sent()
        tasks = [asyncio.create_task(send(client, phase, sender, seconds, sent)) for sender in senders]
        stop = asyncio.create_task(told.get())
        everything = asyncio.ensure_future(asyncio.wait(tasks))
        await asyncio.wait([everything, stop], return_when=asyncio.FIRST_COMPLETED)
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        await client.close()
        for task in [*tasks, stop]:
            task.cancel()
        return sent

    pipe.send(asyncio.run(run()))


class SendingProcess:
    def __init__(self, endpoint: str, phase: Phase, senders: list[Sender], seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=send_all, args=(endpoint, phase, senders, seconds, theirs), daemon=True
        )
        self._process.start()
        assert self._pipe.recv() == "ready"

    def begin(self) -> None:
        self._pipe.send("begin")

    def end(self, stop: bool) -> Sent:
        """What came of its requests: once all have ended, or as of now."""
        if stop:
            with suppress(BrokenPipeError):  # it has ended by itself, and said what there is to say
                self._pipe.send("stop")
        sent = self._pipe.recv()
        self._process.join()
        assert isinstance(sent, Sent)
        return sent


# What is measured -------------------------------------------------------------------------------------------


async def capacity(endpoint: str, setup: Setup, seconds: float) -> float:
    """Requests per second with all rows running."""
    client = EngineClient(endpoint, "bench-capacity")
    await client.start()
    async with asyncio.timeout(120):
        await client.wait_ready()
    sent, sender = Sent(), Sender("warm", DEFAULT, 1.0)
    begin = time.perf_counter()

    async def place(number: int) -> None:
        turn = 0
        while time.perf_counter() < begin + 2 * seconds:
            submit = request(setup, sender, f"warm-{number}-{turn}")
            await ask(client, submit, time.perf_counter(), sent)
            turn += 1

    places = asyncio.gather(*(place(number) for number in range(setup.rows + setup.rows // 4)))
    await asyncio.sleep(seconds)
    before, at = sent.finished.get("warm", 0), time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (sent.finished["warm"] - before) / (time.perf_counter() - at)
    await places
    await client.close()
    return rate


def look(
    endpoint: str, phase: Phase, share: float, others: PriorityClass, besides: list[Sender]
) -> tuple[Sent, Sent]:
    """The nine send, and others besides. What came of the ones, and of the others."""
    senders = [Sender(f"t{number}", others, share) for number in range(NUM_OTHERS)]
    senders.append(Sender("patient", FLEX, FLEX_PER_SECOND))
    beside = SendingProcess(endpoint, phase, besides, phase.seconds + GRACE_S) if besides else None
    nine = SendingProcess(endpoint, phase, senders, phase.seconds)
    if beside is not None:
        beside.begin()
        time.sleep(HEAD_START_S)
    nine.begin()
    seen = nine.end(stop=False)
    return seen, Sent() if beside is None else beside.end(stop=True)


def compare(
    endpoint: str, setup: Setup, classes: tuple[PriorityClass, PriorityClass], share: float, seconds: float
) -> dict[str, Any]:
    """Measures one pair of classes: beside tenants that send their share, and beside one that sends all of
    theirs.
    """
    noisy, others = classes
    fillers = [Sender(f"f{number}", noisy, share) for number in range(NUM_OTHERS)]
    noise = [Sender("noisy", noisy, NOISE * share)]
    pair = f"{noisy}-{others}"
    calm, _ = look(endpoint, Phase(f"calm-{pair}", seconds, setup), share, others, fillers)
    loud, made = look(endpoint, Phase(f"loud-{pair}", seconds, setup), share, others, noise)
    before, beside = ttft(calm), ttft(loud)
    return {
        "engine": setup.name,
        "noisy": str(noisy),
        "others": str(others),
        "requests_of_others": num_requests(loud),
        "refused_of_others": sum(count for tenant, count in loud.refused.items() if tenant != "patient"),
        "ttft_ms": before,
        "ttft_ms_beside_noise": beside,
        "rise_p99_percent": round(100 * (beside["p99"] / before["p99"] - 1), 1),
        "noisy_finished": made.finished.get("noisy", 0),
        "noisy_refused": made.refused.get("noisy", 0),
        "noisy_ttft_ms": percentiles(made.waits.get("noisy", [])),
        "flex_longest_wait_s": round(max(loud.waits.get("patient", []), default=0.0), 2),
    }


def num_requests(sent: Sent) -> int:
    return sum(len(waits) for tenant, waits in sent.waits.items() if tenant != "patient")


def ttft(sent: Sent) -> dict[str, float]:
    return percentiles(
        [wait for tenant, waits in sent.waits.items() if tenant != "patient" for wait in waits]
    )


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(seconds)
    return {
        name: round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }


def measure(setup: Setup, seconds: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="rs-bench-") as folder,
        running_engine(setup, Path(folder)) as endpoint,
    ):
        rate = asyncio.run(capacity(endpoint, setup, 3.0))
        share = LOAD * rate / NOISE
        alone, _ = look(endpoint, Phase("alone", seconds, setup), share, DEFAULT, [])
        rows = []
        for classes in PAIRS:
            rows.append(compare(endpoint, setup, classes, share, seconds))
            print(rows[-1], flush=True)
    return {
        "engine": setup.name,
        "prompt_tokens": setup.prompt_len,
        "output_tokens": setup.output_len,
        "capacity_requests_per_s": round(rate, 1),
        "share_requests_per_s": round(share, 2),
        "ttft_ms_alone": ttft(alone),
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engines", default="null,sapling", help="comma-separated")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    arguments = parser.parse_args()
    logs.configure("benchmark", "warning")
    engines = [measure(SETUPS[name], arguments.seconds) for name in arguments.engines.split(",")]
    figures = {
        "tenants_looked_at": NUM_OTHERS, "noise": NOISE, "flex_wait_s": FLEX_WAIT_S,
        "seconds": arguments.seconds, "engines": engines,
    }  # fmt: skip
    write_report(arguments.out, figures)


if __name__ == "__main__":
    main()
