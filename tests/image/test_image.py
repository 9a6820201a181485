"""Builds the image and serves a request from it, with the commands and settings of deploy/compose.yml."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from openai import OpenAI

from cli.local.postgres import SOCKET_NAME as POSTGRES_SOCKET
from cli.local.redis import SOCKET_NAME as REDIS_SOCKET
from cli.local.server import LocalServer
from examples.sapling import BASE
from tests.image.buildah import Buildah, build, prepare, remove
from tests.image.container import Container
from tests.image.forwarding import tcp_port_of
from tests.shipping import compose
from tests.shipping.checkout import ROOT
from tests.support.waiting import until

IMAGE = "localhost/rootstock-test"
VARIABLES = {
    "ROOTSTOCK_KEY_SECRET": "s" * 64,
    "POSTGRES_PASSWORD": "owner",
    "POSTGRES_SERVING_PASSWORD": "serving",
}
"""What deploy/.env.example leaves to be filled in."""
START_S = 150.0


@pytest.fixture(scope="module")
def buildah() -> Iterator[Buildah]:
    ready = prepare(ROOT / "var" / "image")
    build(ready, IMAGE)
    yield ready
    remove(ready, IMAGE)


@pytest.fixture(scope="module")
def container(buildah: Buildah, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    log = tmp_path_factory.mktemp("image") / "container.log"
    made = Container(buildah, IMAGE, {BASE: "/base"}, log)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def stores(postgres_server: LocalServer, redis_server: LocalServer) -> Iterator[dict[str, str]]:
    """Where compose's services look for the stores, and where those of the tests are."""
    with (
        tcp_port_of(postgres_server.sockets / POSTGRES_SOCKET) as postgres,
        tcp_port_of(redis_server.sockets / REDIS_SOCKET) as redis,
    ):
        yield {"@postgres:5432": f"@127.0.0.1:{postgres}", "//redis:6379": f"//127.0.0.1:{redis}"}


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def environment(service: str, stores: dict[str, str]) -> dict[str, str]:
    """A service's settings as compose makes them, but for the addresses of the stores."""
    filled = {**compose.example_variables(), **VARIABLES}
    settings = {
        name: compose.interpolate(str(value), filled)
        for name, value in compose.own_services("compose.yml")[service]["environment"].items()
    }
    for there, here in stores.items():
        settings = {name: value.replace(there, here) for name, value in settings.items()}
    return settings


def test_without_a_command_it_prints_its_help(buildah: Buildah, container: Container) -> None:
    config = buildah.config(IMAGE)
    assert "serve-engine" in container.run(config["Cmd"])
    assert config["User"] not in ("", "0", "root")


def test_composes_services_answer_a_request(
    container: Container, stores: dict[str, str], migrated_by_compose: None
) -> None:
    services = compose.own_services("compose.yml")
    operator = environment("operator", stores)
    container.run(("tenant", "create", "acme"), operator)
    key = container.run(("key", "create", "acme"), operator).split()[-1]
    port = free_port()
    with ExitStack() as running:
        for name in ("engine", "api"):
            settings = environment(name, stores) | {"ROOTSTOCK_API_PORT": port}
            running.enter_context(container.running(services[name]["command"], settings))
        url = f"http://127.0.0.1:{port}"
        until(lambda: is_ready(url), START_S, f"/readyz; see {container.log}")
        with OpenAI(base_url=f"{url}/v1", api_key=key, timeout=60) as client:
            answer = client.chat.completions.create(
                model="sapling", messages=[{"role": "user", "content": "What is a river?"}]
            )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


@pytest.fixture
def migrated_by_compose(container: Container, stores: dict[str, str]) -> None:
    command = compose.own_services("compose.yml")["migrate"]["command"]
    assert "the schema is at" in container.run(command, environment("migrate", stores))


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
