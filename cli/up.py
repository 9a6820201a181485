"""Runs `rootstock up`: starts everything on one machine in order, keeps it alive, drains it in order.

`supervisor` keeps processes alive, `programs` has their settings, `demo` the demo's content, `display` the
output.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

from cli import health
from cli.cluster.publishing import published_bases, published_drafters
from cli.datadir import DataDir, write_private_json
from cli.demo import SAPLING, Demo
from cli.display import Display, Welcome, closing_display, open_display
from cli.errors import CliError
from cli.listener import listen, visiting_url
from cli.payments_double import PaymentsDouble
from cli.processes import settings_from_environment
from cli.programs import CHECKOUT, Service
from cli.restarts import RestartCounter
from cli.servers import Stores
from cli.service_access import silence_logs, upgrade_schema
from cli.supervisor import Child, ChildFailed, Event, Program, Supervisor
from cli.unbilled import finish_metering
from cli.up_options import UpOptions
from engine.client import EngineClient
from engine.protocol import EngineInfo
from routing.endpoints import parse_endpoints, registry_in
from routing.replica_set import ReplicaSet
from telemetry.disk import DiskSettings, start_problem
from telemetry.tasks import discard, run_together

T = TypeVar("T")
_START_S = 600.0
"""Seconds for the start: a large base model on a slow disk takes minutes to load."""


def run_up(options: UpOptions) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit status. Raises `CliError` for what the operator
    can fix.
    """
    bases = options.chosen_bases()
    options.check_replicas()
    gpus = options.chosen_gpus()
    silence_logs()
    problem = start_problem(options.data, settings_from_environment(DiskSettings).min_free_bytes)
    if problem is not None:
        raise CliError(problem)
    with DataDir(options.data.absolute()) as data, closing_display(open_display()) as display:
        service = Service(
            data=data,
            bases=bases,
            redis_url="",
            tensor_parallel=options.tensor_parallel,
            is_demo=options.demo,
            replicas=options.replicas,
            prefill_replicas=options.prefill_replicas,
            api_processes=options.api_processes,
            gpus=gpus,
            ray=options.chosen_ray(data.path),
        )
        return asyncio.run(_Up(options, service, display).run())


class _Stopped(Exception):
    """The operator stopped the service."""


class _Up:
    def __init__(self, options: UpOptions, service: Service, display: Display) -> None:
        """`service` lacks the addresses of databases, which are known once these run."""
        self._options, self._data, self._display = options, service.data, display
        self._service = service
        self._stop = asyncio.Event()
        self._started_at = time.monotonic()
        self._supervisor = Supervisor(self._tell)
        self._stores = Stores(self._data.path, display.note)
        self._restarts = RestartCounter(lambda: self._stores.redis.url)
        self._stores.restarted = lambda name: self._restarts.restarted(name.lower())
        self._listener: socket.socket | None = None
        self._own: list[socket.socket] = []
        """A second socket of each of several API processes, which otherwise answer in turn."""
        self._url = ""
        self._payments: PaymentsDouble | None = None
        self._watching: set[asyncio.Task[None]] = set()
        self._engine_states: list[Path] = []
        """The folders of the engines that were started."""
        self._engines: dict[str, str] = {}
        """Their endpoints, by the child's name."""

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._told_to_stop)
        self._data.serving_file.unlink(missing_ok=True)
        status = 0
        try:
            status = await self._serve()
        except _Stopped:
            pass
        except ChildFailed as failure:
            self._display.trouble(f"{failure}; its log: {failure.log}", failure.tail)
            status = 1
        finally:
            await self._drain()
        return status

    @property
    def _api_urls(self) -> list[str]:
        """An address of each API process."""
        return [visiting_url(own) for own in self._own] or [self._url]

    def _told_to_stop(self) -> None:
        if self._stop.is_set():  # a second signal: stop now
            self._supervisor.kill_all()
        self._stop.set()

    async def _serve(self) -> int:
        self._listener = listen(self._options.host, self._options.port)
        self._url = visiting_url(self._listener)
        port, count = self._options.port, self._options.api_processes
        for number in range(count if count > 1 else 0):
            self._own.append(listen("127.0.0.1", port + 1 + number if port else 0))
        demo = Demo(self._data, self._service.base_name) if self._options.demo else None
        if demo is not None:
            if not demo.adapters:
                raise CliError(f"{SAPLING} holds no adapters for --demo: reinstall Rootstock")
            demo.set_aside()
            if PaymentsDouble.is_wanted():
                self._payments = PaymentsDouble(self._data, self._url)
        await self._until_stopped(self._start(demo))
        if self._options.showcase:
            status = await self._until_stopped(self._show())
            if self._options.once or status:
                return status
        await self._stop.wait()
        return 0

    async def _until_stopped(self, work: Coroutine[None, None, T]) -> T:
        """Awaits `work`, but cancels it when the operator stops the service."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _Stopped
            return task.result()
        finally:
            await discard(task, stop)

    # Start --------------------------------------------------------------------------------------------------

    async def _start(self, demo: Demo | None) -> None:
        assert self._listener is not None
        with self._display.step("Redis") as step:
            step.detail(self._stores.redis.start(self._data.path))
        service = dataclasses.replace(
            self._service,
            redis_url=self._stores.redis.url,
            payments=self._payments.settings if self._payments is not None else {},
        )
        if service.ray is not None and service.ray.fetches:
            title = "Base in the object store" if len(service.bases) == 1 else "Bases in the object store"
            with self._display.step(title) as step:
                given = self._data.path, service.bases, service.environment()
                digests, drafters = await published_bases(*given), await published_drafters(*given)
                step.detail(", ".join(digests.values()))
            ray = dataclasses.replace(service.ray, base_digests=digests, drafters=drafters)
            service = dataclasses.replace(service, ray=ray)
        self._engine_states = service.engine_states
        # They load their model while the database comes up.
        engines = [await self._launch(program) for program in service.engines()]
        names = [engine.program.name for engine in engines]
        self._engines = dict(zip(names, service.engine_endpoints, strict=service.ray is None))
        if self._payments is not None:
            await self._launch(self._payments.program())
        with self._display.step("PostgreSQL") as step:
            step.detail(self._stores.postgres.start(self._data.path))
        db_url, db_owner_url = self._stores.database_urls()
        service = dataclasses.replace(service, db_url=db_url, db_owner_url=db_owner_url)
        self._stores.keep_alive()
        await run_together(self._start_engines(engines, service, demo), self._start_services(service))
        if demo is not None:
            with self._display.step("Demo") as step:
                await demo.populate(service)
                step.detail(f"tenants {' and '.join(demo.tenants)}, {len(demo.adapters)} adapters")
        with self._display.step("Ready?"):
            for url in self._api_urls:
                await self._bounded(health.wait_until_ready(url), *self._supervisor.children.values())
        for child in self._supervisor.children.values():
            child.settle()
        self._restarts.begin([*self._supervisor.children, "redis", "postgresql"])
        self._welcome(service, demo)

    async def _start_engines(self, engines: Sequence[Child], service: Service, demo: Demo | None) -> None:
        is_several = len(engines) > 1 or service.ray is not None
        infos: dict[str, EngineInfo] = {}
        num_engines = service.num_serving + service.prefill_replicas
        with self._display.step(f"{num_engines} engines" if is_several else "Engine") as step:
            step.detail(
                "loading " + ", ".join(f"{base.name} ({base.quantization})" for base in service.bases)
            )
            for endpoint in service.engine_endpoints:
                info = await self._bounded(_engine_at(endpoint), *engines)
                infos[info.base] = info
            step.detail("; ".join(map(_told, infos.values())))
        if demo is not None:
            with self._display.step("Adapters") as step:
                await demo.pack(service, infos[service.base_name].base_digest)
                step.detail(f"{len(demo.adapters)} packed")

    async def _start_services(self, service: Service) -> None:
        with self._display.step("Schema") as step:
            step.detail(await asyncio.to_thread(upgrade_schema, service.db_owner_url, service.db_url))
        assert self._listener is not None
        worker = await self._launch(service.worker())
        jobs = await self._launch(service.jobs())
        with self._display.step("API") as step:
            own_fds = [own.fileno() for own in self._own]
            programs = service.apis(self._listener.fileno(), own_fds)
            apis = [await self._launch(program) for program in programs]
            await self._bounded(health.wait_until_alive(self._url), *apis, worker, jobs)
            step.detail(self._url)

    async def _launch(self, program: Program) -> Child:
        try:
            return await self._supervisor.start(program)
        except OSError as error:
            raise CliError(f"cannot run {program.argv[0]}: {error.strerror}") from error

    async def _bounded(self, work: Coroutine[None, None, T], *needed: Child) -> T:
        """Awaits `work`, no longer than a start may take and only while the children it needs live."""
        task = asyncio.create_task(work)
        deaths = [asyncio.create_task(child.failed()) for child in needed]
        try:
            done, _ = await asyncio.wait(
                {task, *deaths}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED
            )
            for death in deaths:
                if death in done:
                    death.result()
            if task not in done:
                raise CliError(f"not ready after {_START_S:.0f} s: see the logs in {self._data.logs}")
            return task.result()
        finally:
            await discard(task, *deaths)

    def _welcome(self, service: Service, demo: Demo | None) -> None:
        document = {"pid": os.getpid(), "base_url": f"{self._url}/v1", "environment": service.environment()}
        write_private_json(self._data.serving_file, document)
        payments_url = self._payments.url if self._payments is not None else None
        facts = demo.publish(self._url, payments_url) if demo is not None else {}
        model, prompt = demo.example() if demo is not None else (service.base_name, "Hello")
        self._display.welcome(
            Welcome(
                base_url=f"{self._url}/v1",
                console_url=f"{self._url}/console",
                metrics_url=", ".join(f"{url}/metrics" for url in self._api_urls),
                data_dir=str(self._options.data),
                took_s=time.monotonic() - self._started_at,
                model=model,
                prompt=prompt,
                api_key=facts.get("api_key"),
                sign_in=f"{facts['email']}, password {facts['password']}" if facts else None,
                operator_sign_in=(
                    f"{facts['operator_email']}, password {facts['operator_password']}" if facts else None
                ),
                payments=f"test mode, by a double of Stripe at {payments_url}" if payments_url else None,
            )
        )

    # Serve --------------------------------------------------------------------------------------------------

    async def _show(self) -> int:
        """Runs the showcase against this service; returns its exit status."""
        command = (sys.executable, "-m", "examples.showcase", "--demo", str(self._data.demo_file))
        process = await asyncio.create_subprocess_exec(*command, cwd=CHECKOUT, start_new_session=True)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _tell(self, event: Event) -> None:
        self._display.note(f"{event.child} {event.detail or event.kind}")
        if event.kind == "restarted":
            self._restarts.restarted(event.child)
            task = asyncio.get_running_loop().create_task(self._watch_return(event.child))
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)

    async def _watch_return(self, name: str) -> None:
        since = time.monotonic()
        if name in self._engines:  # with others, the service is ready without it
            await _engine_at(self._engines[name])
        for url in self._api_urls:
            await health.wait_until_ready(url)
        self._display.note(f"{name} is back, all is ready again after {time.monotonic() - since:.1f} s")

    # Stop ---------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Stops everything: the API first, so that no new request comes in; jobs before the engines they
        measure on; the worker after these, so that it meters the last usage.
        """
        await discard(*self._watching)
        await self._restarts.close()
        self._data.serving_file.unlink(missing_ok=True)
        for listener in (self._listener, *self._own):
            if listener is not None:
                listener.close()
        for kind in ("api", "jobs", "engine", "worker"):
            names = [name for name in self._supervisor.children if name.partition("-")[0] == kind]
            if names:
                with self._display.step(f"stopping {kind}", done="stopped") as step:
                    if kind == "worker":
                        step.detail(await self._finish_metering())
                    await run_together(*(self._supervisor.stop(name) for name in names))
        await self._supervisor.stop_all()
        if self._payments is not None:
            self._payments.close()
        await self._stores.stop()

    async def _finish_metering(self) -> str:
        worker = self._supervisor.children["worker"]
        redis_url = self._stores.redis.url
        return await finish_metering(redis_url, self._engine_states, lambda: worker.pid is not None)


def _told(info: EngineInfo) -> str:
    return f"{info.base}, {info.quantization}, on {info.device}, context {info.context_length}"


async def _engine_at(endpoint: str) -> EngineInfo:
    """Waits until an engine answers, or one that takes requests of a registry's, and returns what it says of
    itself.
    """
    endpoints = parse_endpoints(endpoint)
    is_registry = registry_in(endpoints) is not None
    client = ReplicaSet(endpoints, "up") if is_registry else EngineClient(endpoint, "up")
    await client.start()
    try:
        return await client.wait_ready()
    finally:
        await client.close()
