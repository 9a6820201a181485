"""Checks the base model's directory, the engine, free disk space, and settings that must agree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from adapters.published_artifacts.settings import ArtifactSource
from adapters.served_bases import FurtherBases
from adapters.storage.settings import StorageSettings
from api.settings import ApiSettings
from cli.checks.configuration import OPERATOR_REDIS_URL, Configuration, variable_of
from cli.checks.findings import Finding, Status
from cli.checks.stores import redis_address
from engine.protocol import EngineInfo
from engine.settings import EngineSettings
from telemetry.tasks import gather_all
from worker.settings import JobsSettings, WorkerSettings

ENGINE_ANSWER_S = 4.0
"""A ready engine sends a heartbeat twice a second; an attempt to connect takes at most two seconds."""


def redis_urls(configuration: Configuration) -> dict[str, str]:
    """Returns the Redis URLs of every process and of the operator's commands, by variable."""
    urls = configuration.values("redis_url", ApiSettings, WorkerSettings, EngineSettings)
    operators = configuration.environment.get(OPERATOR_REDIS_URL)
    return urls | ({OPERATOR_REDIS_URL: operators} if operators else {})


def check_agreement(configuration: Configuration) -> Iterator[Finding]:
    """Checks that settings of several processes that name one thing are equal. Yields differences only."""
    base_names = configuration.values("base_name", ApiSettings, JobsSettings, EngineSettings)
    further = configuration.get(FurtherBases)
    if further is not None:
        yield from _check_bases(configuration, further)
        engines_own = variable_of(EngineSettings, "base_name")
        if base_names.get(engines_own) in {base.name for base in further.further}:
            del base_names[engines_own]  # an engine of another base than the first
    source = configuration.get(ArtifactSource)
    fetches = source is not None and source.fetch
    artifacts = {} if fetches else configuration.values("artifacts_dir", JobsSettings, EngineSettings)
    redis = {name: redis_address(url) for name, url in redis_urls(configuration).items()}
    groups = (
        (Status.FAILED, base_names, "API and jobs wait for an engine that serves their base model's name"),
        (Status.WARNING, artifacts, "the engine finds packed adapters only in the same directory"),
        (Status.WARNING, redis, "usage is billed only if they name the same database of one server"),
    )
    for status, values, consequence in groups:
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{name}={value}" for name, value in values.items())
            yield Finding("settings", status, f"{shown} differ: {consequence}")


def _check_bases(configuration: Configuration, further: FurtherBases) -> Iterator[Finding]:
    """Checks that the base models differ in name and engines."""
    for settings in (configuration.get(ApiSettings), configuration.get(JobsSettings)):
        if settings is not None:
            try:
                further.beside(settings.first_base)
            except ValueError as error:
                yield Finding("settings", Status.FAILED, str(error))
                return


def check_base(variable: str, directory: Path, *, needs_weights: bool) -> Finding:
    """Checks that the base model's directory holds a config, a usable tokenizer and, if needed, weights."""
    from tokenization.codec import TextCodec

    name = "base model"
    if not (directory / "config.json").is_file():
        remedy = "name a directory in Hugging Face layout"
        return Finding(name, Status.FAILED, f"{variable}: {directory} holds no config.json: {remedy}")
    if needs_weights and not any(directory.glob("*.safetensors")):
        remedy = "download the weights in this format"
        return Finding(name, Status.FAILED, f"{variable}: {directory} holds no *.safetensors: {remedy}")
    try:
        TextCodec.load(directory)
    except (OSError, ValueError) as error:
        return Finding(name, Status.FAILED, f"{variable}: no usable tokenizer in {directory}: {error}")
    return Finding(name, Status.OK, f"{directory} ({variable})")


async def check_engines(endpoints: Sequence[str], base_name: str | None) -> list[Finding]:
    """Checks that an engine answers at each endpoint and serves `base_name` (None accepts any base), and that
    the engines can be replicas of one another.
    """
    answers = await gather_all(*(_check_engine(endpoint, base_name) for endpoint in endpoints))
    findings = [finding for finding, _ in answers]
    infos = {one: info for one, (_, info) in zip(endpoints, answers, strict=True) if info is not None}
    weights = {f"{info.base_digest[:12]} {info.quantization}" for info in infos.values()}
    if len(weights) > 1:
        shown = ", ".join(
            f"{endpoint} {info.base_digest[:12]} as {info.quantization}" for endpoint, info in infos.items()
        )
        remedy = "start all on one base with one quantization"
        findings.append(Finding("engines", Status.FAILED, f"{shown}: only one of them is used: {remedy}"))
    ids = [info.engine_id for info in infos.values()]
    if len(set(ids)) < len(ids):
        remedy = "give each a ROOTSTOCK_ENGINE_ENGINE_ID of its own"
        detail = f"{', '.join(infos)} have the ids {', '.join(ids)}: {remedy}"
        findings.append(Finding("engines", Status.FAILED, detail))
    return findings


async def _check_engine(endpoint: str, base_name: str | None) -> tuple[Finding, EngineInfo | None]:
    """Returns the finding on one engine, and what it says of itself if it serves."""
    from engine.client import EngineClient

    client = EngineClient(endpoint, "check")
    await client.start()
    try:
        async with asyncio.timeout(ENGINE_ANSWER_S):
            info = await client.wait_ready()
    except TimeoutError:
        if client.is_starting:
            detail = f"{endpoint} is loading its model: check again later"
            return Finding("engine", Status.WARNING, detail), None
        remedy = "start `rootstock serve-engine`, or correct the endpoint"
        return Finding("engine", Status.WARNING, f"no engine answers at {endpoint}: {remedy}"), None
    finally:
        await client.close()
    if base_name is not None and info.base != base_name:
        detail = f"{endpoint} serves {info.base!r}, the settings expect {base_name!r}"
        remedy = "give both the same name, or list it under its own base"
        return Finding("engine", Status.FAILED, f"{detail}: {remedy}"), info
    detail = f"{endpoint} serves {info.base} on {info.device} ({info.engine_id})"
    return Finding("engine", Status.OK, detail), info


def check_disks(
    storage: StorageSettings | None, engine: EngineSettings | None, min_free_bytes: int
) -> Iterator[Finding]:
    """Checks that the file systems of the object store and of the engine's usage spool have room."""
    from adapters.storage import open_store
    from telemetry.disk import disk_space, start_problem

    directories = {}
    if storage is not None:
        directories["disk of objects"] = open_store(storage).scratch
    if engine is not None:
        directories["disk of the engine"] = engine.state_dir
    for name, directory in directories.items():
        problem = start_problem(directory, min_free_bytes)
        if problem is not None:
            yield Finding(name, Status.FAILED, problem)
        else:
            yield Finding(name, Status.OK, f"{disk_space(directory).free_bytes / 1e9:,.1f} GB free")
