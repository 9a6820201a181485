"""Engines on a Ray cluster of two nodes on one machine: an engine, a node and the head are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.programs import CHECKOUT
from tests.e2e.stack import ROOTSTOCK, Stack, eventually
from tests.e2e.streams import Crowd, Stream, read_stream
from tests.support.ports import free_port

pytest.importorskip("ray", reason="install rootstock[ray]")
NUM_STREAMS = 16
MAX_TOKENS = 120
BACK_S = 60.0
TRIES = 5
SERVED_ON_S = 3.0
"""Nodes give a lost head up after ten seconds."""


class Cluster(Stack):
    """`up --ray` with a head of one core, and a node of one core that joined it: an engine on each."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder / "data", "--ray", "--replicas", "2")
        self._address, self.joined = f"127.0.0.1:{port}", folder / "joined"
        self._log = (folder / "join.log").open("wb")
        self._node: subprocess.Popen[bytes] | None = None
        self.killed_at = 0.0
        """When something of it was killed last, by `time.monotonic`."""

    def join(self) -> None:
        eventually((self.data / "ray.token").exists, 30, "the cluster's token")
        options = ("--data", str(self.joined), "--token", str(self.data / "ray.token"), "--cpus", "1")
        command = [*ROOTSTOCK, "join", self._address, *options]
        self._node = subprocess.Popen(command, cwd=CHECKOUT, stdout=self._log, stderr=self._log)

    @property
    def node(self) -> int:
        assert self._node is not None
        return self._node.pid

    def leave(self) -> None:
        if self._node is not None:
            self._node.terminate()
            self._node.wait(60)
        self._log.close()

    def losses(self) -> str:
        """What the API process said of engines that it lost, and `up` of what it started again."""
        log = (self.data / "logs" / "api.log").read_text(errors="replace")
        return "\n".join([*(line for line in log.splitlines() if "engine is gone" in line), self.output])

    def both_generate(self) -> bool:
        """Whether streams run on both engines. What engines report is up to half a second old."""
        deadline = time.monotonic() + 0.7
        while (running := len(self.generating())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        return running == 2

    def wait_until_whole(self) -> None:
        eventually(lambda: self.serving() == {"engine-0", "engine-1"}, BACK_S, "both engines")


def find(below: int, word: bytes) -> int:
    """The first process below another with a word on its command line."""
    return int(eventually(lambda: next(_find(below, word), 0), 30, f"a process with {word!r}"))


def _find(pid: int, word: bytes) -> Iterator[int]:
    """Looks at the children of every thread: an engine is one of an actor's second."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in listed.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            if word in _command_of(child):
                yield child
            yield from _find(child, word)


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    port = free_port()
    cluster = Cluster(tmp_path_factory.mktemp("ray"), port)
    with pytest.MonkeyPatch.context() as patch:
        # A store that all hosts reach: the node that joined has no other folder in common with `up`.
        patch.setenv("ROOTSTOCK_STORAGE_URL", (cluster.data.parent / "store").as_uri())
        patch.setenv("ROOTSTOCK_RAY_PORT", str(port))
        patch.setenv("ROOTSTOCK_RAY_NODE_CPUS", "1")
        try:
            cluster.start()
            cluster.join()
            cluster.wait_until_whole()
            yield cluster
        finally:
            cluster.finish()
            cluster.leave()


async def test_a_host_that_joined_fetched_base_and_adapters(cluster: Cluster) -> None:
    digest = json.loads((cluster.data / "published-base.json").read_text())["digest"]
    for folder in (cluster.data, cluster.joined):
        assert (folder / "bases" / digest / "config.json").is_file()
    async with cluster.client() as client:
        answers = [
            read_stream(client, Stream(model, f"{number} + 5"), max_tokens=4)
            for number in range(4)
            for model in cluster.models
        ]
        assert [answer.error for answer in await asyncio.gather(*answers)] == [None] * len(answers)
    packed = {path.name for path in (cluster.data / "artifacts").rglob("*.rsa")}
    here, there = (
        {path.name for path in (folder / "adapters").rglob("*.rsa")}
        for folder in (cluster.data, cluster.joined)
    )
    assert here | there == packed
    assert there, "the other host has served some"
    await asyncio.to_thread(cluster.wait_until_metered)


async def killed_under_streams(cluster: Cluster, victim: int) -> list[Stream]:
    """Kills a process while streams run; the streams, once both engines are back and all is metered."""
    async with cluster.client() as client:
        for _ in range(TRIES):
            rows_before = cluster.ledger()
            crowd = Crowd(client, cluster.models, NUM_STREAMS, MAX_TOKENS)
            await crowd.all_generating(4)
            if await asyncio.to_thread(cluster.both_generate):
                break
            await crowd.ended()  # on a busy machine one engine may look slow, and gets none
            await asyncio.to_thread(cluster.wait_until_metered)
        os.kill(victim, signal.SIGKILL)
        cluster.killed_at = time.monotonic()
        streams = await crowd.ended()
        await asyncio.to_thread(cluster.wait_until_whole)
        answer = await read_stream(client, Stream(cluster.models[-1], "8 + 5"), max_tokens=4)
        assert answer.error is None
    await asyncio.to_thread(cluster.wait_until_metered)
    rows = {id_: row for id_, row in cluster.ledger().items() if id_ not in rows_before}
    assert answer.usage is not None
    assert rows.pop(answer.id).completion == answer.usage.completion_tokens
    for stream in streams:
        row = rows.pop(stream.id)
        assert stream.num_received <= row.completion <= MAX_TOKENS
        if stream.error is None:
            assert row.completion == stream.num_received == MAX_TOKENS
        else:
            assert row.finish_reason == "error"
    assert rows == {}, "nothing is billed that no client asked for"
    return streams


async def test_a_killed_engine_is_back_on_its_node(cluster: Cluster) -> None:
    streams = await killed_under_streams(cluster, find(cluster.node, b"serve-engine"))
    assert 0 < sum(stream.error is not None for stream in streams) < NUM_STREAMS


async def test_a_killed_node_joins_again_with_its_engine(cluster: Cluster) -> None:
    raylet = find(cluster.node, b"raylet/raylet")
    streams = await killed_under_streams(cluster, raylet)
    assert any(stream.error is None for stream in streams), (
        f"the other node's engine goes on; {cluster.losses()}"
    )
    assert any(stream.error is not None for stream in streams)
    assert find(cluster.node, b"raylet/raylet") != raylet


async def test_a_killed_head_is_started_again_and_finds_its_nodes(cluster: Cluster) -> None:
    head = find(cluster.process.pid, b"gcs_server")
    engines = [find(pid, b"serve-engine") for pid in (cluster.process.pid, cluster.node)]
    streams = await killed_under_streams(cluster, head)
    served_until = cluster.killed_at + SERVED_ON_S
    assert any(stream.error is None or stream.last_token_at > served_until for stream in streams), (
        "the other node serves on for a while; on a busy machine its streams take longer than that"
    )
    for pid, engine in zip((cluster.process.pid, cluster.node), engines, strict=True):
        # The node that joined goes on until it gives the old head up.
        await asyncio.to_thread(
            eventually,
            lambda pid=pid, engine=engine: next(_find(pid, b"serve-engine"), engine) != engine,
            BACK_S,
            "another engine",
        )
    await asyncio.to_thread(cluster.wait_until_whole)
    assert find(cluster.process.pid, b"gcs_server") != head
    cluster.wait_until_ready()


def test_operators_commands_find_the_engines(cluster: Cluster) -> None:
    checked = cluster.operate("check").stdout
    for number in range(2):
        assert f"(engine-{number})" in checked, checked
    assert "ROOTSTOCK_RAY" not in checked, "no variable is unknown"
    assert "ROOTSTOCK_ENGINE_ENDPOINT" not in checked


def test_it_stops_in_order(cluster: Cluster) -> None:
    began = time.monotonic()
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.process.wait(90) == 0, cluster.output
    assert "all usage is in the ledger" in cluster.output
    assert time.monotonic() - began < 60, cluster.output
