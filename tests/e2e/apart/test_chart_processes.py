"""The chart's pods as processes of this machine: their commands, settings and probes serve a request.

What a cluster would do is done by the test: Secrets, names of services, and folders for volumes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from openai import OpenAI
from sqlalchemy import make_url

from engine.transport.curve import KeyPair
from examples.sapling import BASE
from tests.deploy.chart import environment, own_containers, rendered
from tests.support.clusters import migrator_url
from tests.support.forks import forked_programs
from tests.support.ports import free_port
from tests.support.waiting import until

START_S = 150.0
LOOK_EVERY = 0.05
IMAGE_BASE = "/opt/rootstock/lib/python3.11/site-packages/examples/sapling/weights/base"


class Pod:
    """One container of the chart. `places`: what the cluster's paths and names are here."""

    def __init__(
        self,
        container: dict[str, Any],
        name: str,
        secrets: Mapping[tuple[str, str], str],
        places: dict[str, str],
        logs: Path,
    ) -> None:
        self._container = container
        self._log = logs / f"{name}.log"
        made = environment(container, secrets, name)
        for there, here in places.items():
            made = {variable: value.replace(there, here) for variable, value in made.items()}
        ours = {
            variable: value for variable, value in os.environ.items() if not variable.startswith("ROOTSTOCK_")
        }
        self._environment = ours | made

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def command(self, *arguments: str) -> str:
        """Runs a command in it to its end, as `kubectl exec` does, and returns what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            env=self._environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def complete(self) -> str:
        return self.command(*self._container["args"])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs in the background. At the end SIGTERM must stop it with status 0."""
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "cli.main", *self._container["args"]]
            process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, self.log
        finally:
            process.terminate()
            try:
                status = process.wait(60)
            finally:
                process.kill()
        assert status == 0, self.log

    def passes(self, probe: str) -> bool:
        """Asks as the kubelet does."""
        how = self._container[f"{probe}Probe"]
        if "exec" in how:
            command = how["exec"]["command"]
            return subprocess.run(command, env=self._environment, capture_output=True).returncode == 0
        if "tcpSocket" in how:
            try:
                socket.create_connection(("127.0.0.1", self._port(how["tcpSocket"]["port"])), 5).close()
            except OSError:
                return False
            return True
        try:
            url = f"http://127.0.0.1:{self._port(how['httpGet']['port'])}{how['httpGet']['path']}"
            return 200 <= httpx.get(url, timeout=5).status_code < 400
        except httpx.HTTPError:
            return False

    def _port(self, name: str) -> int:
        [port] = [one["containerPort"] for one in self._container["ports"] if one["name"] == name]
        return int(port)


@pytest.fixture(autouse=True)
def forked() -> Iterator[None]:
    with forked_programs():
        yield


def test_the_pods_serve_a_request(database_url: str, owner_url: str, redis_url: str, tmp_path: Path) -> None:
    keys, api_port = KeyPair.make(), free_port()
    containers = own_containers(
        rendered(
            "try",
            *("--set", "postgresql.bundled=false,redis.bundled=false,secrets.existingSecret=rootstock"),
            *("--set", f"api.port={api_port},engine.port={free_port()}"),
            *("--set", "engine.encryption.existingSecret=clients"),
            *("--set-string", f"engine.encryption.publicKey={keys.public.hex()}"),
        )
    )
    secrets = {
        ("rootstock", "key-secret"): "k" * 64,
        ("rootstock", "database-url"): database_url,
        ("rootstock", "database-owner-url"): migrator_url(database_url),
        ("rootstock", "redis-url"): redis_url,
    }
    places = {
        "/etc/rootstock/clients": str(tmp_path / "clients"),
        "/var/lib/rootstock": str(tmp_path / "data"),
        "rootstock-engine-0.rootstock-engine": "127.0.0.1",
        IMAGE_BASE: str(BASE),
    }
    for folder in ("clients", "data/shared"):
        (tmp_path / folder).mkdir(parents=True)
    keys.write(tmp_path / "clients" / "clients.key")
    pods = {
        component: Pod(container, f"rootstock-{component}-0", secrets, places, tmp_path)
        for component, container in containers.items()
    }
    assert "the schema is at" in pods["migrate"].complete()
    api, engine = pods["api"], pods["engine"]
    with ExitStack() as running:
        assert not engine.passes("startup")
        for component in ("engine", "api", "beat"):
            running.enter_context(pods[component].running())
        api.command("tenant", "create", "acme")
        key = api.command("key", "create", "acme").split()[-1]
        for pod in (engine, api):
            for probe in ("startup", "liveness", "readiness"):
                until(
                    lambda p=pod, b=probe: p.passes(b), START_S, f"{probe}; {pod.log}", look_every=LOOK_EVERY
                )
        with OpenAI(base_url=f"http://127.0.0.1:{api_port}/v1", api_key=key, timeout=60) as client:
            answer = client.chat.completions.create(
                model="sapling", messages=[{"role": "user", "content": "What is a river?"}]
            )
        assert answer.choices[0].message.content
        url = make_url(owner_url).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
            counted = "SELECT count(*) FROM usage_records"
            until(
                lambda: connection.execute(counted).fetchone() == (1,),
                30,
                "the ledger",
                look_every=LOOK_EVERY,
            )
        shown = httpx.get(f"http://127.0.0.1:{api_port}/metrics", timeout=10).text
        for metric in (
            "rootstock_requests_running",
            "rootstock_requests_waiting",
            "rootstock_first_tokens_total",
        ):
            assert f"\n{metric}{{" in shown  # what the autoscaler asks for
    assert (tmp_path / "data/engine/rootstock-engine-0/serving").exists()
    assert not engine.passes("readiness")
