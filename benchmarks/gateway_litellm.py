"""Runs LiteLLM's proxy under the same traffic: its own virtual environment, one process, no database.

Installs it below `var/`, configures it, and runs the server behind it, which speaks OpenAI's protocol and
answers at once. That server's own time is subtracted from what comes through the proxy. The proxy checks one
key; it counts no quotas and meters nothing, because its database client would have to be downloaded at its
first start.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from benchmarks.gateway_site import ROOT, Cores, DidNotStart, cpu_seconds, free_port, pin, stop, wait_for
from benchmarks.gateway_traffic import Outcome, Task, Wrong, run_beside
from benchmarks.random_llama import random_words

HOME = ROOT / "var" / "litellm"
PACKAGE = "litellm[proxy]"
KEY = "sk-benchmark-0123456789abcdef"
OUTPUT_TOKENS = 4
STREAM_TOKENS = 256
AT_ONCE = 32
STREAMS = 8
START_S = 120.0


def measure_litellm(cores: Cores, seconds: float, seed: int) -> dict[str, Any]:
    """Figures as of our API; or, where it could not be installed or started, the reason."""
    try:
        version = install()
        with tempfile.TemporaryDirectory(prefix="rs-litellm-") as folder, ExitStack() as opened:
            return {"version": version, **_measure(Path(folder), opened, cores, seconds, seed)}
    except (subprocess.CalledProcessError, OSError, DidNotStart, Wrong) as error:
        output = getattr(error, "stderr", None) or str(error)
        return {"not_measured": str(output)[-2000:]}


def install() -> str:
    """Its version. Raises CalledProcessError: its `stderr` saying why."""
    uv = Path(sys.executable).with_name("uv")
    python = HOME / "bin" / "python"
    if not (HOME / "bin" / "litellm").exists():
        HOME.parent.mkdir(exist_ok=True)
        _run(uv, "venv", "-q", "--clear", "--python", sys.executable, HOME)
        _run(uv, "pip", "install", "-q", "--python", python, PACKAGE)
    return _run(python, "-c", "import importlib.metadata as m; print(m.version('litellm'))").strip()


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def _measure(folder: Path, opened: ExitStack, cores: Cores, seconds: float, seed: int) -> dict[str, Any]:
    upstream_port, port = free_port(), free_port()
    upstream = _start(
        opened, folder, cores.others, sys.executable, "-m", "benchmarks.gateway_litellm", str(upstream_port)
    )
    wait_for(f"http://127.0.0.1:{upstream_port}/", upstream, folder / "log")
    config = folder / "config.yaml"
    config.write_text(json.dumps(_config(upstream_port)))  # JSON is YAML
    command = [HOME / "bin" / "litellm", "--config", config, "--host", "127.0.0.1", "--port", port]
    proxy = _start(opened, folder, cores.measured, *map(str, [*command, "--num_workers", 1]))
    url = f"http://127.0.0.1:{port}"
    wait_for(f"{url}/health/liveliness", proxy, folder / "log", START_S)
    rng = np.random.default_rng(seed)
    prompts = [random_words(rng, 48) for _ in range(64)]

    def run(where: str, seconds: float, **changes: Any) -> tuple[Outcome, float]:
        task = Task(
            urls=[f"{where}/v1/chat/completions"],
            model="null",
            prompts=prompts,
            keys=[KEY],
            max_tokens=OUTPUT_TOKENS,
            at_once=AT_ONCE,
            seconds=seconds,
            seed=seed,
        )
        before = cpu_seconds(proxy.pid)
        outcome = run_beside(msgspec.structs.replace(task, **changes), cores.others)
        if outcome.failures:
            raise Wrong(f"{outcome.failures} beside {outcome.requests} answers")
        return outcome, cpu_seconds(proxy.pid) - before

    behind = f"http://127.0.0.1:{upstream_port}"
    run(url, seconds / 4)  # it imports and connects as requests come
    saturated, saturated_cpu = run(url, seconds / 2)
    rate = saturated.per_second / 2
    alone, _ = run(behind, seconds / 4, rate=rate)
    at_half, half_cpu = run(url, seconds, rate=rate)
    single, _ = run(url, seconds / 4, at_once=1)
    changes = {"stream": True, "at_once": STREAMS, "max_tokens": STREAM_TOKENS}
    streams, streams_cpu = run(url, seconds / 2, **changes)
    return {
        "added_ms": {name: round(value - alone.ms["p50"], 3) for name, value in at_half.ms.items()},
        "rps_per_core": round(saturated.requests / saturated_cpu, 1),
        "stream_tok_s_per_core": round(streams.tokens / streams_cpu, 1),
        "saturating_rps": saturated.per_second,
        "at_half": {
            "rate": round(rate, 1),
            "requests": at_half.requests,
            "ms": at_half.ms,
            "cpu_s": round(half_cpu, 2),
        },
        "upstream_alone": {"rate": round(rate, 1), "ms": alone.ms},
        "one_connection": {"ms": single.ms, "per_second": single.per_second},
        "streams": {"at_once": STREAMS, "tok_s": streams.tokens_per_second, "cpu_s": round(streams_cpu, 2)},
        "setting": "one worker, master key only: no database, hence no quotas and no metering",
    }


def _config(upstream_port: int) -> dict[str, Any]:
    where = {"model": "openai/null", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "none"}
    return {
        "model_list": [{"model_name": "null", "litellm_params": where}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"num_retries": 0, "telemetry": False},
    }


def _start(opened: ExitStack, folder: Path, cores: frozenset[int], *command: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROOTSTOCK_")}
    environment |= {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # nothing is fetched at its start
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "NO_PROXY": "127.0.0.1",
    }
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    pin(process, cores)
    opened.callback(stop, process)
    return process


# The server behind the proxy --------------------------------------------------------------------------------

_HEAD = {"id": "chatcmpl-null", "created": 1, "model": "null"}
_USAGE = {"prompt_tokens": 50, "completion_tokens": OUTPUT_TOKENS, "total_tokens": 50 + OUTPUT_TOKENS}


def _whole() -> bytes:
    message = {"role": "assistant", "content": " tok" * OUTPUT_TOKENS}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    body = json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _stream() -> bytes:
    def event(delta: dict[str, str], reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        body = {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    events = [event({"role": "assistant", "content": " tok"}, None)]
    # All different: a proxy may take a model that repeats itself for a broken one.
    events += [event({"content": f" t{number}"}, None) for number in range(1, STREAM_TOKENS)]
    events += [event({}, "length"), b"data: [DONE]\n\n"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in events) + b"0\r\n\r\n"


class NullUpstream(asyncio.Protocol):
    """Answers every request with the same, at once."""

    whole, stream = _whole(), _stream()

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            at = head.find(b"content-length:")
            size = 0 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self._received) < end + 4 + size:
                return
            body = self._received[end + 4 : end + 4 + size]
            self._received = self._received[end + 4 + size :]
            streams = b'"stream":true' in body.replace(b'": ', b'":')
            self._transport.write(self.stream if streams else self.whole)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(NullUpstream, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
