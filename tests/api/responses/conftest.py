"""The application with stored state in a real database, over an engine that plays a script."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import create_engine, pool, text

from api.assembly.stored_state import stored_state
from api.grammars.checks import GrammarChecks
from api.metrics.background_work import BackgroundResponseMetrics
from api.responses.runner import BackgroundRunner
from db.session import Database
from telemetry.metrics import ServingMetrics
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey
from tests.api.conftest import Served, build, serving
from tests.api.fakes import KEY, OTHER_KEY, FakeKeys
from tests.support.text_base import SPECIAL, TOOL_TEMPLATE, write_base
from tokenization.codec import TextCodec
from tokenization.reasoning.efforts import OfferedReasoning
from tokenization.reasoning.formats import ReasoningFormat
from tokenization.tools.formats import ToolFormat

SECRET = "s" * 32
PROJECT_KEY = "sk-rs-0123456789abcdefABCDEFproject-2"
"""A key of the first tenant's second project."""
CALLERS = {
    KEY: ("ten_one", "proj_one", "key_one"),
    PROJECT_KEY: ("ten_one", "proj_side", "key_side"),
    OTHER_KEY: ("ten_two", "proj_two", "key_two"),
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def write_response_base(folder: Path, template: str) -> Path:
    """A base without a model whose grammars can be checked."""
    base = write_base(folder, template)
    config = {"vocab_size": 480, "eos_token_id": SPECIAL.index("<|end|>")}
    (base / "config.json").write_text(json.dumps(config))
    return base


@pytest.fixture(scope="session")
def response_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_response_base(tmp_path_factory.mktemp("responses"), TOOL_TEMPLATE)


@pytest.fixture(scope="session")
def response_codec(response_base: Path) -> TextCodec:
    return TextCodec.load(response_base)


class KnownCallers:
    """Finds callers by their keys' ids, as long as their keys work."""

    def __init__(self, keys: FakeKeys) -> None:
        self._keys = keys
        self.revoked: set[str] = set()

    async def of(self, tenant_id: str, key_id: str) -> TenantContext:
        for caller in self._keys.callers.values():
            found = (caller.tenant_id, caller.key_id)
            if found == (tenant_id, key_id) and key_id not in self.revoked:
                return caller
        raise InvalidApiKey


@dataclass
class Site:
    """A served application, and its database to look into."""

    served: Served
    owner_url: str
    codec: TextCodec
    callers: KnownCallers

    def says(self, answer: str, **options: Any) -> None:
        """Has the engine answer every request with this text."""
        engine = self.served.world.engine
        engine.script = lambda submit: engine.says(submit, answer, **options)

    @property
    def prompt(self) -> str:
        """The last prompt as text, with special tokens by name."""
        return b"".join(
            (self.codec.special_token(token_id) or "").encode() or self.codec.vocabulary.decode([token_id])
            for token_id in self.served.world.engine.submitted[-1].prompt_ids
        ).decode()

    def sql(self, query: str, **values: Any) -> list[Any]:
        """Runs a statement as the tables' owner; returns the first column of its rows."""
        with create_engine(self.owner_url, poolclass=pool.NullPool).begin() as connection:
            connection.execute(text("SELECT set_config('rootstock.tenant', '*', true)"))
            found = connection.execute(text(query), values)
            return list(found.scalars()) if found.returns_rows else []

    @contextmanager
    def blocked(self, table: str) -> Iterator[None]:
        """Lets every statement on the table run into its timeout."""
        with create_engine(self.owner_url, poolclass=pool.NullPool).begin() as connection:
            connection.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
            yield

    def change_caller(self, key: str = KEY, **changes: Any) -> None:
        callers = self.served.world.keys.callers
        callers[key] = dataclasses.replace(callers[key], **changes)


@pytest.fixture
def site(response_base: Path, response_codec: TextCodec, database_url: str, owner_url: str) -> Iterator[Site]:
    with open_site(response_base, response_codec, database_url, owner_url) as opened:
        yield opened


@contextmanager
def open_site(base: Path, codec: TextCodec, database_url: str, owner_url: str) -> Iterator[Site]:
    """Serves a base; it thinks if its chat template does."""
    with create_engine(owner_url, poolclass=pool.NullPool).begin() as connection:
        for tenant in ("ten_one", "ten_two"):
            connection.execute(text(f"INSERT INTO tenants (id, name) VALUES ('{tenant}', '{tenant}')"))
        for tenant, project, _ in CALLERS.values():
            values = f"'{project}', '{tenant}', '{project}'"
            connection.execute(text(f"INSERT INTO projects (id, tenant_id, name) VALUES ({values})"))
    database = Database(database_url, statement_timeout=4.0)
    grammars = GrammarChecks(base, ServingMetrics())
    tools = ToolFormat.of(codec)
    thinking = ReasoningFormat.of(codec, tools=tools)
    world = build(
        codec,
        grammars=grammars,
        tool_format=tools,
        reasoning=None if thinking is None else OfferedReasoning.of(thinking, {"low": 100}),
        state=stored_state(database, SECRET),
    )
    world.keys.callers |= {
        key: TenantContext(tenant, tenant, key_id, "inference", project_id=project)
        for key, (tenant, project, key_id) in CALLERS.items()
    }
    callers = KnownCallers(world.keys)
    metrics = BackgroundResponseMetrics(world.services.metrics.registry)
    runner = BackgroundRunner(world.services, callers, "runner-1", tick=0.1, metrics=metrics)  # type: ignore[arg-type]
    object.__setattr__(world.services, "background", runner)

    async def start() -> None:
        runner.start()  # the process that checks grammars starts with the first of them: most tests have none

    async def close() -> None:
        await runner.close()
        await grammars.close()
        await database.close()

    with serving(world, close, start) as served:
        yield Site(served, owner_url, codec, callers)


def client_of(site: Site, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{site.served.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def sdk(site: Site) -> Iterator[openai.OpenAI]:
    with client_of(site) as opened:
        yield opened


@pytest.fixture
def other(site: Site) -> Iterator[openai.OpenAI]:
    """The client of another tenant."""
    with client_of(site, OTHER_KEY) as opened:
        yield opened
