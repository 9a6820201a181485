"""`rootstock check`: what it names as missing, failed, weak or off, against real servers, and no secret."""

from __future__ import annotations

import ast
import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from adapters.served_bases import FurtherBases, ServedBase
from adapters.storage.settings import StorageSettings
from admin.settings import ConsoleSettings, ProviderSettings
from api.settings import ApiSettings, ConnectionSettings
from billing.invoices.settings import InvoiceSettings
from billing.notifications.settings import NotificationSettings
from billing.payments.settings import StripeSettings
from cli import check
from cli.checks import features, serving, stores
from cli.checks.configuration import USERS, Configuration, read_configuration
from cli.checks.findings import Finding, Status
from cli.checks.process import Process
from db.settings import DatabaseSettings
from engine.protocol import EngineInfo
from engine.settings import EngineSettings
from telemetry.disk import DiskSettings
from tests.cli.commands import run
from tests.engine.process.engines import EngineProcess
from tests.support.text_base import write_base
from worker.settings import JobsSettings, WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
SAPLING = ROOT / "examples/sapling/weights/base"
NOWHERE = "127.0.0.1:9"
SECRET = "hidden-0123456789-0123456789-0123456789"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any setting of the service."""
    for name in os.environ:
        if name.startswith("ROOTSTOCK_"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is waited for."""
    monkeypatch.setattr(serving, "ENGINE_ANSWER_S", 0.2)


@pytest.fixture
def complete(database_url: str, redis_url: str, tmp_path: Path) -> dict[str, str]:
    """All that is required, the engine at a socket of its own."""
    (tmp_path / "objects").mkdir()
    base = {"BASE_PATH": str(SAPLING), "BASE_NAME": "sapling", "ENGINE_ENDPOINT": f"ipc://{tmp_path}/e.sock"}
    return {
        "ROOTSTOCK_DB_URL": database_url,
        "ROOTSTOCK_REDIS_URL": redis_url,
        "ROOTSTOCK_TENANTS_KEY_SECRET": SECRET,
        "ROOTSTOCK_STORAGE_URL": f"file://{tmp_path}/objects",
        "ROOTSTOCK_API_REDIS_URL": redis_url,
        "ROOTSTOCK_WORKER_REDIS_URL": redis_url,
        "ROOTSTOCK_JOBS_ARTIFACTS_DIR": f"{tmp_path}/artifacts",
        "ROOTSTOCK_ENGINE_ARTIFACTS_DIR": f"{tmp_path}/artifacts",
        "ROOTSTOCK_ENGINE_DATA_DIR": str(tmp_path),
        "ROOTSTOCK_ENGINE_REDIS_URL": redis_url,
        "ROOTSTOCK_ENGINE_BASE": str(SAPLING),
        "ROOTSTOCK_ENGINE_BASE_NAME": "sapling",
        "ROOTSTOCK_ENGINE_ENDPOINT": base["ENGINE_ENDPOINT"],
        **{f"ROOTSTOCK_API_{name}": value for name, value in base.items()},
        **{f"ROOTSTOCK_JOBS_{name}": value for name, value in base.items()},
    }


@pytest.fixture
def engine(redis_url: str, tmp_path: Path) -> Iterator[EngineProcess]:
    """At the endpoint of `complete`."""
    process = EngineProcess(
        tmp_path, redis_url, endpoint=f"ipc://{tmp_path}/e.sock", base_name="sapling", base=SAPLING
    )
    process.start()
    yield process
    process.end()


def statuses(document: str) -> dict[str, str]:
    return {one["name"]: one["status"] for one in json.loads(document)["checks"]}


def details(findings: list[Finding], status: Status) -> list[str]:
    return [finding.detail for finding in findings if finding.status is status]


# The command -------------------------------------------------------------------------------------------


def test_a_complete_environment_is_ready_and_says_what_is_off(
    complete: Mapping[str, str], engine: EngineProcess, shell: pytest.MonkeyPatch
) -> None:
    for name, value in complete.items():
        shell.setenv(name, value)
    document = run("check", "--json")
    assert json.loads(document)["ok"]
    assert statuses(document) == {
        "settings": "ok",
        "PostgreSQL": "ok",
        "Redis": "ok",
        "Redis persistence": "warning",  # the tests' Redis keeps nothing
        "object store": "ok",
        "engine": "ok",
        "base model": "ok",
        "disk of objects": "ok",
        "disk of the engine": "ok",
        "payments (Stripe)": "off",
        "mail (SMTP)": "off",
        "console URL": "off",
        "signatures": "off",
        "signing": "off",
        "sign-in providers (OpenID)": "off",
        "operators' second factor": "ok",
        "trusted proxies": "off",
        "invoice seller": "off",
    }
    shown = run("check")
    assert "off      mail (SMTP)                 no mail is sent: set ROOTSTOCK_NOTIFY_SMTP_HOST\n" in shown
    assert "***" not in shown
    assert shown.splitlines()[-1].startswith("ready to serve: ")
    shell.setenv("ROOTSTOCK_API_BASE_NAME", "other")
    shell.setenv("ROOTSTOCK_JOBS_BASE_NAME", "other")
    shown = run("check", code=1)
    assert "serves 'sapling', the settings expect 'other': give both the same name" in shown


@pytest.mark.usefixtures("no_engine")
def test_what_is_missing_is_named(
    complete: Mapping[str, str], shell: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in complete.keys() - {"ROOTSTOCK_DB_URL", "ROOTSTOCK_JOBS_BASE_PATH"}:
        shell.setenv(name, complete[name])
    shell.setenv("ROOTSTOCK_API_REDIS_URL", f"redis://{NOWHERE}/0")
    shell.setenv("ROOTSTOCK_STORAGE_URL", f"file://{tmp_path}/absent")
    shown = run("check", code=1)
    for line in (
        "missing  settings                    ROOTSTOCK_DB_URL is not set: described in db/settings.py",
        "missing  settings                    ROOTSTOCK_JOBS_BASE_PATH is not set: described in",
        f"failed   Redis                       redis://{NOWHERE}/0 does not answer",
        "correct ROOTSTOCK_API_REDIS_URL",
        f"warning  object store                file://{tmp_path}/absent is not a directory yet",
        "warning  engine                      no engine answers at ipc://",
    ):
        assert line in shown
    assert shown.splitlines()[-1].startswith("not ready to serve: ")
    assert not (tmp_path / "absent").exists()


def test_one_process_needs_only_its_own_settings(
    complete: Mapping[str, str], shell: pytest.MonkeyPatch
) -> None:
    for name, value in complete.items():
        if name.startswith(("ROOTSTOCK_WORKER", "ROOTSTOCK_DB")):
            shell.setenv(name, value)
    assert set(statuses(run("check", "--process", "worker", "--json"))) == {
        *("settings", "PostgreSQL", "Redis", "Redis persistence"),
        *("payments (Stripe)", "mail (SMTP)", "invoice seller", "operator commands"),
    }
    assert "ROOTSTOCK_API_BASE_PATH is not set" in run("check", "--process", "api", code=1)


@pytest.mark.usefixtures("no_engine")
def test_a_directory_stands_for_the_settings_of_its_up(
    complete: Mapping[str, str], shell: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "serving.json").write_text(json.dumps({"environment": complete}))
    shell.setenv("ROOTSTOCK_NOTIFY_SMTP_HOST", "mail.example")
    shell.setenv("ROOTSTOCK_DB_URL", f"postgresql+psycopg://nobody@{NOWHERE}/none")
    found = statuses(run("check", "--json", "--data", str(tmp_path)))
    assert (found["PostgreSQL"], found["mail (SMTP)"]) == ("ok", "off")


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_no_secret_is_printed(form: tuple[str, ...], shell: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_base(tmp_path)
    for name, value in {
        "DB_URL": f"postgresql+psycopg://serving:{SECRET}@{NOWHERE}/rootstock",
        "API_REDIS_URL": f"redis://user:{SECRET}@{NOWHERE}/0?password={SECRET}",
        "API_ENGINE_ENDPOINT": f"ipc://{tmp_path}/none.sock",
        "API_BASE_PATH": str(tmp_path),
        "API_BASE_NAME": "other",
        "TENANTS_KEY_SECRET": SECRET[:20],
        "STORAGE_URL": "s3://bucket/prefix",
        "STORAGE_ENDPOINT": f"http://{NOWHERE}",
        "STORAGE_ACCESS_KEY_ID": "known",
        "STORAGE_SECRET_ACCESS_KEY": SECRET,
        "STORAGE_RETRIES": "0",
        "STRIPE_API_KEY": f"sk_live_{SECRET}",
        "STRIPE_WEBHOOK_SECRET": f"whsec_{SECRET}",
        "NOTIFY_SMTP_HOST": "mail.example",
        "NOTIFY_SMTP_PASSWORD": SECRET,
        "CONSOLE_PROVIDERS": json.dumps([{"name": "UPPER", "client_secret": SECRET}]),
    }.items():
        shell.setenv(f"ROOTSTOCK_{name}", value)
    shown = run("check", "--process", "api", *form, code=1)
    assert SECRET[:20] not in shown
    for part in ("PostgreSQL", "redis://", "object store", "payments", "ROOTSTOCK_CONSOLE_PROVIDERS[0]"):
        assert part in shown


def test_a_secret_that_a_message_quotes_is_masked(shell: pytest.MonkeyPatch) -> None:
    shell.setenv("ROOTSTOCK_TENANTS_KEY_SECRET", SECRET)
    shell.setenv("ROOTSTOCK_WORKER_QUEUES", SECRET)
    assert "ROOTSTOCK_WORKER_QUEUES is wrong: '***' is none of" in run("check", "--process", "worker", code=1)


# Settings ----------------------------------------------------------------------------------------------


def test_every_settings_class_is_checked() -> None:
    """One that is not would have its variables reported as unknown."""
    known = {(kind.__module__, kind.__name__) for kind in USERS}
    packages = ("adapters", "admin", "api", "billing", "cli", "db", "engine", "sla", "telemetry", "tenants")
    for package in (*packages, "conversations", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            module, text = ".".join(path.relative_to(ROOT).with_suffix("").parts), path.read_text()
            if BaseSettings.__name__ not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and any(
                    isinstance(parent, ast.Name) and parent.id == BaseSettings.__name__
                    for parent in node.bases
                ):
                    assert (module, node.name) in known


@pytest.mark.parametrize(
    ("variable", "value", "status", "says"),
    [
        ("TENANTS_KEY_SECRET", "short", Status.FAILED, "ROOTSTOCK_TENANTS_KEY_SECRET is wrong: "),
        ("API_PORT", "http", Status.FAILED, "ROOTSTOCK_API_PORT is wrong: Input should be a valid integer"),
        ("CONSOLE_URL", "http://a.example", Status.FAILED, "ROOTSTOCK_CONSOLE_URL is wrong: must begin"),
        ("CONSOLE_PROVIDERS", "[", Status.FAILED, "ROOTSTOCK_CONSOLE_PROVIDERS is not valid JSON"),
        ("ENGINE_QUANTIZATION", "int8", Status.FAILED, "set ROOTSTOCK_DEVICE_QUANTIZATION instead"),
        ("ENGINE_QUEUE_LIMIT", "0", Status.FAILED, "ROOTSTOCK_ENGINE_QUEUE_LIMIT is wrong: "),
        ("NOTIFY_SMTPHOST", "a", Status.WARNING, "ROOTSTOCK_NOTIFY_SMTPHOST is not a setting and has no"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, status: Status, says: str) -> None:
    environment = {f"ROOTSTOCK_{variable}": value}
    _, findings = read_configuration(environment, set(Process))
    [detail] = [one for one in details(findings, status) if f"ROOTSTOCK_{variable}" in one]
    assert says in detail


def test_reading_settings_leaves_the_environment_alone(shell: pytest.MonkeyPatch) -> None:
    shell.setenv("ROOTSTOCK_API_HOST", "192.0.2.1")
    before = dict(os.environ)
    configuration, _ = read_configuration({"ROOTSTOCK_CONSOLE_URL": "https://a.example"}, {Process.API})
    assert dict(os.environ) == before
    console = configuration.get(ConsoleSettings)
    assert console is not None
    assert console.url == "https://a.example"


def test_settings_of_several_processes_must_agree() -> None:
    api = ApiSettings(
        engine_endpoint="ipc:///e", base_path=SAPLING, base_name="a", redis_url="redis://:pw@one:6379/0"
    )
    jobs = JobsSettings(
        engine_endpoint="ipc:///e", base_path=SAPLING, base_name="b", artifacts_dir=Path("/jobs")
    )
    engine = EngineSettings(artifacts_dir=Path("/engine"), redis_url="redis://one:6379/1", base_name="a")
    built: dict[type[BaseSettings], BaseSettings] = {
        ApiSettings: api,
        JobsSettings: jobs,
        EngineSettings: engine,
    }
    findings = list(serving.check_agreement(Configuration({}, built)))
    assert [finding.status for finding in findings] == [Status.FAILED, Status.WARNING, Status.WARNING]
    assert "ROOTSTOCK_API_BASE_NAME=a, ROOTSTOCK_JOBS_BASE_NAME=b" in findings[0].detail
    assert "ROOTSTOCK_ENGINE_ARTIFACTS_DIR=/engine differ" in findings[1].detail
    assert "ROOTSTOCK_API_REDIS_URL=redis://one:6379/0, ROOTSTOCK_ENGINE" in findings[2].detail


# Servers -----------------------------------------------------------------------------------------------


async def test_postgres_at_this_schema(database_url: str) -> None:
    [finding] = await stores.check_postgres(DatabaseSettings(url=database_url))
    assert finding.status is Status.OK


async def test_postgres_without_a_schema_or_as_its_owner(empty_database_url: str, owner_url: str) -> None:
    for url in (empty_database_url, owner_url):
        [finding] = await stores.check_postgres(DatabaseSettings(url=url))
        assert finding.status is Status.FAILED
        assert "serve as another role" in finding.detail


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"postgresql+psycopg://a:{SECRET}@{NOWHERE}/b", f"database b at {NOWHERE} as a does not answer"),
        (f"postgresql+psycopg://a@/b?host=/absent&password={SECRET}", "database b at /absent as a does not"),
        (f"{SECRET}", "ROOTSTOCK_DB_URL cannot be read: write postgresql+psycopg://"),
        (f"postgresql+absent://a:{SECRET}@h/b", "ROOTSTOCK_DB_URL cannot be read"),
    ],
)
async def test_postgres_that_cannot_be_asked(url: str, says: str) -> None:
    [finding] = await stores.check_postgres(DatabaseSettings(url=url))
    assert finding.status is Status.FAILED
    assert says in finding.detail
    assert SECRET not in finding.detail


async def test_redis_that_keeps_what_it_is_given(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as server:
        before = {name: server.config_get(name)[name] for name in ("appendonly", "maxmemory-policy")}
        try:
            server.config_set("appendonly", "yes")
            found = await stores.check_redis("ROOTSTOCK_REDIS_URL", redis_url)
            assert [finding.status for finding in found] == [Status.OK, Status.OK]
            server.config_set("appendonly", "no")
            server.config_set("maxmemory-policy", "allkeys-lru")
            found = await stores.check_redis("ROOTSTOCK_REDIS_URL", redis_url)
        finally:
            for name, value in before.items():
                server.config_set(name, value)
    assert [finding.status for finding in found] == [Status.OK, Status.WARNING]
    assert "set `appendonly yes`; maxmemory-policy is allkeys-lru" in found[1].detail


async def test_redis_that_refuses_writes(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as server:
        server.config_set("maxmemory", 1)
        try:
            [finding] = await stores.check_redis("ROOTSTOCK_REDIS_URL", redis_url)
        finally:
            server.config_set("maxmemory", 0)
    assert finding.status is Status.FAILED
    assert "refuses writes" in finding.detail


async def test_redis_that_cannot_be_asked() -> None:
    for url, says in ((f"redis://{NOWHERE}/0", "does not answer"), ("http://a", "cannot be read")):
        [finding] = await stores.check_redis("ROOTSTOCK_API_REDIS_URL", url)
        assert finding.status is Status.FAILED
        assert says in finding.detail
        assert "ROOTSTOCK_API_REDIS_URL" in finding.detail


def test_an_object_is_written_read_and_removed(tmp_path: Path) -> None:
    [finding] = asyncio.run(stores.check_storage(StorageSettings(url=f"file://{tmp_path}")))
    assert finding.status is Status.OK
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_a_store_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "check").write_text("in the way of the folder")
    [finding] = await stores.check_storage(StorageSettings(url=f"file://{tmp_path}"))
    assert finding.status is Status.FAILED
    assert "the object store is unavailable" in finding.detail


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://one:6379/0", "redis://one:6379/0"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock"),
        (f"rediss://user:{SECRET}@one:6379/0", "rediss://one:6379/0"),
        (f"redis://:a/{SECRET}@one:6379/0", "redis://one:6379/0"),
        (f"redis://:a?{SECRET}@one:6379/0", "redis://..."),
        (f"redis://one/0?password={SECRET}", "redis://one/0"),
    ],
)
def test_an_address_of_redis_has_no_password(url: str, shown: str) -> None:
    assert stores.redis_address(url) == shown


@pytest.mark.usefixtures("no_engine")
async def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    [finding] = await serving.check_engines([f"ipc://{tmp_path}/e.sock"], "sapling")
    assert finding.status is Status.WARNING
    assert f"no engine answers at ipc://{tmp_path}/e.sock: start `rootstock serve-engine`" in finding.detail


async def test_engines_that_cannot_be_replicas_of_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {
        "ipc:///a": EngineInfo("engine-0", "i", "sapling", "a" * 64, "none", "cpu", 512, 511, 100, "test"),
        "ipc:///b": EngineInfo("engine-0", "i", "sapling", "b" * 64, "int8", "cpu", 512, 511, 100, "test"),
    }

    async def found(endpoint: str, base_name: str | None) -> tuple[Finding, EngineInfo]:
        return Finding("engine", Status.OK, endpoint), engines[endpoint]

    monkeypatch.setattr(serving, "_check_engine", found)
    assert [one.status for one in await serving.check_engines(["ipc:///a"], None)] == [Status.OK]
    findings = await serving.check_engines(list(engines), None)
    assert [one.status for one in findings] == [Status.OK, Status.OK, Status.FAILED, Status.FAILED]
    assert "start all on one base with one quantization" in findings[2].detail
    assert "ROOTSTOCK_ENGINE_ENGINE_ID" in findings[3].detail


@pytest.mark.parametrize(
    ("removed", "says"),
    [("config.json", "holds no config.json"), ("tokenizer.json", "no usable tokenizer")],
)
def test_a_base_that_is_incomplete(removed: str, says: str, tmp_path: Path) -> None:
    write_base(tmp_path)
    (tmp_path / "config.json").touch()
    assert serving.check_base("X", tmp_path, needs_weights=False).status is Status.OK
    assert "no *.safetensors" in serving.check_base("X", tmp_path, needs_weights=True).detail
    (tmp_path / removed).unlink()
    finding = serving.check_base("X", tmp_path, needs_weights=False)
    assert finding.status is Status.FAILED
    assert says in finding.detail


def test_a_disk_without_room(tmp_path: Path) -> None:
    storage = StorageSettings(url=f"file://{tmp_path}")
    [finding] = serving.check_disks(storage, None, 1 << 62)
    assert finding.status is Status.FAILED
    assert "lower ROOTSTOCK_DISK_MIN_FREE_BYTES" in finding.detail


# Features ----------------------------------------------------------------------------------------------

KEY = {"api_key": SecretStr("sk_test_1")}
HOOKS = {"webhook_secret": SecretStr("whsec_1")}


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        ({}, Status.OFF, "ROOTSTOCK_STRIPE_API_KEY"),
        (KEY, Status.WARNING, "ROOTSTOCK_STRIPE_WEBHOOK_SECRET"),
        (KEY | HOOKS, Status.WARNING, "ROOTSTOCK_STRIPE_RETURN_URL"),
        (KEY | HOOKS | {"return_url": "https://a.example"}, Status.OK, "a test key: no money moves"),
    ],
)
def test_stripe(given: dict[str, Any], status: Status, says: str) -> None:
    finding = features.check_stripe(StripeSettings(**given))
    assert finding.status is status
    assert says in finding.detail


@pytest.mark.parametrize(
    ("given", "url", "status", "says"),
    [
        ({}, "", Status.OFF, "ROOTSTOCK_NOTIFY_SMTP_HOST"),
        ({"smtp_host": "mail"}, "https://a.example", Status.WARNING, "ROOTSTOCK_NOTIFY_SENDER"),
        ({"smtp_host": "mail", "sender": "a@b.example"}, "", Status.WARNING, "ROOTSTOCK_CONSOLE_URL"),
        (
            {"smtp_host": "mail", "sender": "a@b.example", "smtp_security": "none", "smtp_user": "a"},
            "https://a.example",
            Status.WARNING,
            "unencrypted",
        ),
        ({"smtp_host": "mail", "sender": "a@b.example"}, "https://a.example", Status.OK, "mail:587"),
    ],
)
def test_mail(given: dict[str, Any], url: str, status: Status, says: str) -> None:
    finding = features.check_mail(NotificationSettings(**given), ConsoleSettings(url=url))
    assert finding.status is status
    assert says in finding.detail


@pytest.mark.parametrize(
    ("trusted", "url", "status", "says"),
    [
        ("", "", Status.OFF, "ROOTSTOCK_API_FORWARDED_ALLOW_IPS"),
        ("", "https://a.example", Status.WARNING, "https://a.example needs a TLS proxy"),
        ("*", "", Status.WARNING, "every client"),
        ("192.0.2.1, 192.0.2.2", "https://a.example", Status.OK, "192.0.2.1,192.0.2.2"),
    ],
)
def test_proxies(trusted: str, url: str, status: Status, says: str) -> None:
    connections = ConnectionSettings(forwarded_allow_ips=trusted)
    finding = features.check_proxies(connections, ConsoleSettings(url=url))
    assert finding.status is status
    assert says in finding.detail


def test_console() -> None:
    plain = ConsoleSettings()
    provider = ProviderSettings(name="acme", title="Acme", issuer="https://id.example", client_id="a")
    full = ConsoleSettings(url="https://a.example", providers=(provider,))
    lax = ConsoleSettings(operators_second_factor=False)
    for checked, off, on in (
        (features.check_console_url, plain, full),
        (features.check_providers, plain, full),
        (features.check_second_factor, lax, plain),
    ):
        assert checked(off).status is Status.OFF
        assert "ROOTSTOCK_CONSOLE_" in checked(off).detail
        assert checked(on).status is Status.OK


def test_an_invoice_seller_names_what_it_lacks() -> None:
    partly = features.check_seller(InvoiceSettings(seller_name="Acme", seller_address="Street 1"))
    assert partly.status is Status.OFF
    assert partly.detail.endswith("ROOTSTOCK_INVOICE_SELLER_EMAIL, ROOTSTOCK_INVOICE_SELLER_TAX_ID")
    whole = InvoiceSettings(seller_name="A", seller_address="B", seller_email="c@d", seller_tax_id="E")
    assert features.check_seller(whole).status is Status.OK


def test_settings_for_tests_are_pointed_out() -> None:
    lax = NotificationSettings(webhooks_http=True, webhooks_private=True)
    built: dict[type[BaseSettings], BaseSettings] = {
        NotificationSettings: lax,
        EngineSettings: EngineSettings(null=True),
        DiskSettings: DiskSettings(min_free_bytes=0),
    }
    found = list(features.check_features(Configuration({}, built)))
    weak = [one.name for one in found if one.status is Status.WARNING]
    assert weak == ["webhooks", "webhooks", "model"]
    assert "disk space limit" in {one.name for one in found if one.status is Status.OFF}


def test_engines_are_asked_for_the_base_that_the_settings_name_them_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("ROOTSTOCK_")]:
        monkeypatch.delenv(name)
    elm = ServedBase(name="elm", path=Path("elm"), engine_endpoint="tcp://c:1")
    api = ApiSettings(
        engine_endpoint="tcp://a:1,tcp://b:1", base_path=Path("oak"), base_name="oak", redis_url="redis://r"
    )
    worker = WorkerSettings(redis_url="redis://r", engine_endpoints="tcp://a:1,tcp://b:1,tcp://c:1")

    def configured(*further: ServedBase) -> Configuration:
        kinds = {ApiSettings: api, WorkerSettings: worker, FurtherBases: FurtherBases(further=further)}
        return Configuration({}, dict(kinds))

    assert check._pools(configured(elm)) == {"oak": ["tcp://a:1", "tcp://b:1"], "elm": ["tcp://c:1"]}
    assert list(serving.check_agreement(configured(elm))) == []
    (fault,) = serving.check_agreement(configured(elm.model_copy(update={"name": "oak"})))
    assert (fault.status, "two bases are called 'oak'" in fault.detail) == (Status.FAILED, True)
