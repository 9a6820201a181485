"""Opens ten thousand streams whose clients never read, and measures what they cost and how they affect
others.

    python -m benchmarks.idle_streams --out benchmarks/results/cpu-epyc-2-cores/idle-streams.json

Everything is real but the model, as in `benchmarks.gateway`: each stream is authenticated, counted to its
tenant's limits and metered; a thousand tenants have ten each. Readers of other tenants read streams all the
time, four at once. Reported are the resident memory of API and engine, the kernel's for TCP, and how long the
readers' streams take: before, while the idle ones are opened, beside all of them, and after they have
disconnected. At the end the ledger must have a row for each stream, read or not.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import socket
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks.gateway_site import BASE, BASE_NAME, NUM_TENANTS, Site, cpu_seconds, running_site
from benchmarks.gateway_traffic import Outcome, Task, run_beside
from benchmarks.report import write_report

MAX_TOKENS = 800
"""More than fits what kernel and API keep for one that does not read."""
IDLE_TENANTS = 1_000
READERS = 4
READ_TOKENS = 32
STEP_S = 0.02
OPENED_TOGETHER = 250
PATIENCE_S = 900.0


class Unfit(Exception):
    """The run says nothing: streams were cut, or are missing in the ledger."""


class IdleClients:
    """Connections with small buffers whose clients do not read."""

    def __init__(self, port: int, model: str, keys: Sequence[str], max_tokens: int) -> None:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Hello there"}],
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        self._payload = json.dumps(body).encode()
        self._keys = keys
        self._address = ("127.0.0.1", port)
        self._sockets: list[socket.socket] = []

    def open(self, count: int) -> None:
        """So many more."""
        for _ in range(count):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.settimeout(120)
            one.connect(self._address)
            one.sendall(self._request())
            self._sockets.append(one)

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def _request(self) -> bytes:
        key = self._keys[len(self._sockets) % len(self._keys)]
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        return f"{head}Content-Length: {len(self._payload)}\r\n\r\n".encode() + self._payload


def memory_of(pid: int, field: str = "VmRSS") -> int:
    """Resident bytes; with `VmHWM` the most there ever were."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def kernel_memory() -> int:
    """Bytes that TCP's buffers take, of the whole machine."""
    match = re.search(r"^TCP:.* mem (\d+)$", Path("/proc/net/sockstat").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * resource.getpagesize()


class Bench:
    """One site, its idle clients and its readers."""

    def __init__(self, site: Site, num_streams: int, seconds: float) -> None:
        self._site = site
        self._num_streams = num_streams
        self._seconds = seconds
        self._idle = IdleClients(
            int(site.url.rpartition(":")[2]), BASE_NAME, site.keys[:IDLE_TENANTS], MAX_TOKENS
        )
        self._num_read = 0
        self._threads = ThreadPoolExecutor(1)

    def measure(self) -> dict[str, Any]:
        self._read()  # their keys are known, their budgets have begun
        before = {**self._memory(), "readers": self._readers(self._read())}
        began, cpu = time.monotonic(), self._cpu()
        try:
            opening = self._open()
            taken = time.monotonic() - began
            self._wait("rootstock_requests_running", 0)
            beside = {**self._memory(), "readers": self._readers(self._read())}
            if self._gauge("rootstock_open_streams") != self._num_streams:
                raise Unfit("idle streams were cut off before their time")
        finally:
            self._idle.close()
        self._wait("rootstock_open_streams", 0)
        after = {**self._memory(), "readers": self._readers(self._read())}
        self._check_ledger()
        grown = {name: beside["rss"][name] - before["rss"][name] for name in ("api", "engine")}
        return {
            "streams": self._num_streams,
            "open": self._num_streams,
            "kib_per_stream": {name: round(grown[name] / self._num_streams / 1024, 1) for name in grown},
            "seconds_to_open": round(taken, 1),
            "api_cpu_s": round(self._cpu() - cpu, 1),
            "before": _in_mib(before),
            "while_opened": {"readers": [self._readers(each) for each in opening]},
            "beside": _in_mib(beside),
            "after": _in_mib(after),
            "most": _in_mib({"rss": {name: memory_of(pid, "VmHWM") for name, pid in self._pids().items()}}),
            "ledger_rows": self._num_streams + self._num_read,
        }

    def _open(self) -> list[Outcome]:
        """All of them, a few hundred at a time; what readers saw meanwhile."""
        seen: list[Outcome] = []
        reading = self._begin_to_read()
        for opened in range(0, self._num_streams, OPENED_TOGETHER):
            count = min(OPENED_TOGETHER, self._num_streams - opened)
            self._idle.open(count)
            self._wait("rootstock_open_streams", opened + count, exactly=False)
            if reading.done():
                seen.append(self._counted(reading.result()))
                reading = self._begin_to_read()
        seen.append(self._counted(reading.result()))
        return seen

    def _begin_to_read(self) -> Future[Outcome]:
        return self._threads.submit(run_beside, self._task(), self._site.cores.others)

    def _read(self) -> Outcome:
        return self._counted(self._begin_to_read().result())

    def _counted(self, outcome: Outcome) -> Outcome:
        if outcome.failures:
            raise Unfit(f"{outcome.failures}; {self._site.warnings()}")
        self._num_read += outcome.requests
        return outcome

    def _task(self) -> Task:
        return Task(
            urls=[f"{self._site.url}/v1/chat/completions"],
            model=BASE_NAME,
            prompts=["Hello there"],
            keys=self._site.keys[IDLE_TENANTS : IDLE_TENANTS + READERS],
            max_tokens=READ_TOKENS,
            seconds=self._seconds,
            at_once=READERS,
            stream=True,
            base=str(BASE),
            seed=self._num_read,
        )

    @staticmethod
    def _readers(outcome: Outcome) -> dict[str, Any]:
        return {"streams": outcome.requests, "ms": outcome.ms}

    def _memory(self) -> dict[str, Any]:
        rss = {name: memory_of(pid) for name, pid in self._pids().items()}
        return {"rss": rss | {"kernel_tcp": kernel_memory()}}

    def _pids(self) -> dict[str, int]:
        return {"api": self._site.apis[0].pid, "engine": self._site.engines[0].pid}

    def _cpu(self) -> float:
        return cpu_seconds(self._pids()["api"])

    def _gauge(self, name: str) -> float:
        text = httpx.get(f"{self._site.url}/metrics", timeout=120, trust_env=False).text
        match = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        return float(match[1]) if match is not None else 0.0

    def _wait(self, name: str, value: float, exactly: bool = True) -> None:
        """Until the gauge has come to `value`, or past it."""
        deadline = time.monotonic() + PATIENCE_S
        while (seen := self._gauge(name)) != value and (exactly or seen < value):
            if time.monotonic() > deadline:
                raise Unfit(f"{name} is {seen}, and not {value}; {self._site.warnings()}")
            time.sleep(0.1)

    def _check_ledger(self) -> None:
        """Each stream once, whether it was read or not."""
        expected = self._num_streams + self._num_read
        deadline = time.monotonic() + PATIENCE_S
        while (found := self._site.count("SELECT count(*) FROM usage_records")) != expected:
            if time.monotonic() > deadline:
                raise Unfit(f"the ledger has {found} requests of {expected}")
            time.sleep(0.5)


def _in_mib(figures: dict[str, Any]) -> dict[str, Any]:
    rss = figures.pop("rss")
    return {"mib": {name: round(size / 2**20, 1) for name, size in rss.items()}, **figures}


def start_engine(site: Site, num_streams: int) -> None:
    """With room for all of them."""
    site.start_engines(
        STEP_S,
        ROOTSTOCK_ENGINE_MAX_ROWS="4096",
        ROOTSTOCK_ENGINE_MAX_BATCH_TOKENS="8192",
        ROOTSTOCK_ENGINE_QUEUE_LIMIT=str(2 * num_streams + 100),
        ROOTSTOCK_ENGINE_DEFAULT_TTFT_SECONDS="inf",
        ROOTSTOCK_DEVICE_NUM_BLOCKS=str((num_streams + 100) * (MAX_TOKENS // 16 + 8)),
    )


def _arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where to write the report")
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each look at the readers")
    return parser.parse_args(argv)


def main() -> None:
    arguments = _arguments()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert NUM_TENANTS > IDLE_TENANTS + READERS
    with tempfile.TemporaryDirectory(prefix="rs-is-") as folder:
        settings = {"ROOTSTOCK_API_WRITE_TIMEOUT": "3600"}
        with running_site(Path(folder), api=settings) as site:
            start_engine(site, arguments.streams)
            report = Bench(site, arguments.streams, arguments.seconds).measure()
    write_report(arguments.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
