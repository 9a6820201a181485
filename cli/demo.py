"""Sets up the demo: two tenants, keys, console users and sapling's adapters, the same at every start.

`demo.json` (mode 0600) is the only file that holds the demo's keys and passwords in plain text.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import service_access
from cli.children import run_child
from cli.datadir import DataDir, read_json, write_private_json
from cli.demo_billing import bill_last_month
from cli.programs import CHECKOUT, Service
from cli.service_access import Services

if TYPE_CHECKING:
    from engine.protocol import AdapterRef
    from tenants.models import Tenant

SAPLING = CHECKOUT / "examples" / "sapling" / "weights"
DEMO_BASE = SAPLING / "base"
EMAIL = "demo@acme.example"
OPERATOR_EMAIL = "operator@rootstock.example"
PLAN = "demo"
TERMS = {"priority": {"allowed": True, "contracted_tokens_per_minute": 20_000}}
"""All service tiers; the contracted priority rate is so low that a few busy clients exceed it."""
INPUT_PRICE, OUTPUT_PRICE = 150_000, 600_000
"""Micro-USD per million tokens."""
MONTHLY_FEE = 20_000_000
"""Micro-USD."""


@dataclass
class Demo:
    """The demo of one data directory."""

    data: DataDir
    base_name: str
    tenants: tuple[str, str] = ("acme", "birch")
    _facts: dict[str, Any] = field(default_factory=dict)
    _refs: dict[str, AdapterRef] = field(default_factory=dict)
    _base_digest: str = ""

    @property
    def adapters(self) -> list[str]:
        """Returns the names of sapling's adapters, in the order of their folders."""
        return sorted(path.parent.name for path in (SAPLING / "adapters").glob("*/adapter_config.json"))

    def example(self) -> tuple[str, str]:
        """Returns a model to try and a prompt for it."""
        name, prompt = "pirate", "What is the capital of France?"
        return (f"{self.base_name}:{name}", prompt) if name in self.adapters else (self.base_name, "Hello")

    @property
    def _aside(self) -> Path:
        return self.data.path / ".demo.json.last"

    def set_aside(self) -> None:
        """Moves `demo.json` away until everything is ready: a program that waits for it must not read the
        previous run's.
        """
        if self.data.demo_file.exists():
            self.data.demo_file.replace(self._aside)
        self._facts = read_json(self._aside) or {}

    async def pack(self, service: Service, base_digest: str) -> None:
        """Packs the adapters unless that was done for the same files, base and object store. Runs in a
        separate process: packing loads torch, and the supervisor should stay small.
        """
        from engine.protocol import AdapterRef

        self._base_digest = base_digest
        cache_file = self.data.path / "demo-adapters.json"
        cached = read_json(cache_file) or {}
        store = service.environment()["ROOTSTOCK_STORAGE_URL"]  # another one lacks what was packed before
        wanted = {
            name: _fingerprint(SAPLING / "adapters" / name, base_digest, store) for name in self.adapters
        }
        if not all(self._is_packed(cached.get(fingerprint)) for fingerprint in wanted.values()):
            packed = await _pack_elsewhere(
                service, base_digest, {n: SAPLING / "adapters" / n for n in self.adapters}
            )
            cached = {wanted[name]: ref for name, ref in packed.items()}
            write_private_json(cache_file, cached)
        self._refs = {name: AdapterRef(**cached[fingerprint]) for name, fingerprint in wanted.items()}

    def _is_packed(self, ref: dict[str, Any] | None) -> bool:
        from engine.lora.artifact import artifact_path

        return ref is not None and artifact_path(self.data.artifacts, ref["digest"]).exists()

    async def populate(self, service: Service) -> None:
        """Creates what is missing; keys that still work are kept."""
        from tenants.models import OPERATOR_TENANT

        with service_access.plain_errors():
            async with service_access.open_services(service.environment()) as services:
                acme, other = [await _tenant(services, name) for name in self.tenants]
                await sell(services, (acme, other))
                await self._keep_key(services, acme, "api_key", "inference")
                await self._keep_key(services, acme, "admin_api_key", "admin")
                await self._keep_key(services, other, "other_api_key", "inference")
                await self._keep_user(services, acme.id, EMAIL)
                await self._keep_user(services, OPERATOR_TENANT, OPERATOR_EMAIL, "operator_")
                await service_access.register_adapters(services, acme.id, self._refs, self._base_digest)
                if service.payments:
                    await bill_last_month(services, acme.id)

    async def _keep_key(self, services: Services, tenant: Tenant, fact: str, kind: Any) -> None:
        """Keeps the key in `fact` if it is valid and belongs to this tenant, else creates another."""
        from tenants.errors import InvalidApiKey
        from tenants.service import OPERATOR, KeyResolver

        secret = service_access.key_secrets(services.environment)
        resolver = KeyResolver(
            services.database, services.redis, secret
        )  # used once: it need not listen for changes
        try:
            if (await resolver.resolve(self._facts.get(fact, ""))).tenant_id == tenant.id:
                return
        except InvalidApiKey:
            pass
        finally:
            await resolver.close()
        self._facts[fact] = (
            await services.accounts.keys.create(tenant.id, "demo", OPERATOR, kind=kind)
        ).plaintext

    async def _keep_user(self, services: Services, tenant_id: str, email: str, whose: str = "") -> None:
        """Keeps the user if the password is right, else creates one; under another email when this one is
        taken. `whose` is the prefix of the facts' names.
        """
        from tenants.errors import NameTaken

        known, password = self._facts.get(f"{whose}email", email), self._facts.get(f"{whose}password", "")
        if await services.accounts.users.authenticate(known, password):
            return
        password = secrets.token_urlsafe(12)
        wanted = email
        while True:
            try:
                await services.accounts.users.create(tenant_id, wanted, password)
                break
            except NameTaken:  # demo.json was lost, the database was not
                wanted = f"demo-{secrets.token_hex(4)}@{email.partition('@')[2]}"
        self._facts |= {f"{whose}email": wanted, f"{whose}password": password}

    def publish(self, url: str, payments_url: str | None = None) -> dict[str, Any]:
        """Writes `demo.json` once everything serves. Returns its content."""
        facts = {
            "base_url": f"{url}/v1",
            "api_key": self._facts["api_key"],
            "admin_api_key": self._facts["admin_api_key"],
            "console_url": f"{url}/console",
            "email": self._facts["email"],
            "password": self._facts["password"],
            "operator_email": self._facts["operator_email"],
            "operator_password": self._facts["operator_password"],
            "base": self.base_name,
            "adapters": self.adapters,
            "other_api_key": self._facts["other_api_key"],
        }
        if payments_url is not None:
            facts["payments_double_url"] = payments_url
        write_private_json(self.data.demo_file, facts)
        self._aside.unlink(missing_ok=True)
        return facts


async def _tenant(services: Services, name: str) -> Tenant:
    from tenants.errors import TenantNotFound

    try:
        return await services.accounts.tenants.find_tenant(name)
    except TenantNotFound:
        return await services.accounts.tenants.create_tenant(name)


async def sell(services: Services, tenants: tuple[Tenant, ...]) -> None:
    """Sets prices unless there are any, and assigns a plan with every service tier to tenants on the standard
    plan; their requests are served as `default` unless they name a tier.
    """
    from billing.pricing import PriceService
    from engine.protocol import PriorityClass
    from tenants.actors import OPERATOR
    from tenants.errors import NameTaken
    from tenants.plans import STANDARD_PLAN, PlanChanges

    prices = PriceService(services.database, services.redis)
    if not await prices.list():
        await prices.add(input=INPUT_PRICE, cached_input=INPUT_PRICE // 2, output=OUTPUT_PRICE)
    with contextlib.suppress(NameTaken):  # created by an earlier start
        await services.accounts.plans.create(PLAN, PlanChanges(terms=TERMS, monthly_fee=MONTHLY_FEE))
    for tenant in tenants:
        plan = await services.accounts.plans.of_tenant(tenant.id)
        if plan.id == STANDARD_PLAN:
            plan = await services.accounts.plans.set_tenant_plan(tenant.id, PLAN)
        projects = services.accounts.projects
        project = await projects.default(tenant.id)
        if plan.name == PLAN and project.auto_tier is None:
            # The plan includes priority, which costs more: only requests that name it get it.
            await projects.set_service_tiers(tenant.id, project.id, OPERATOR, auto=PriorityClass.DEFAULT)


async def _pack_elsewhere(service: Service, base_digest: str, directories: dict[str, Path]) -> dict[str, Any]:
    """Runs `cli.packing` on the directories; returns the fields of each AdapterRef by name."""
    task = {
        "base_digest": base_digest,
        "directories": {name: str(path) for name, path in directories.items()},
    }
    output = await run_child(
        "cli.packing",
        environment=service.environment(),
        given=json.dumps(task).encode(),
        failure="packing adapters failed",
    )
    packed: dict[str, Any] = json.loads(output)
    return packed


def _fingerprint(directory: Path, base_digest: str, store: str) -> str:
    digest = hashlib.sha256(f"{base_digest} {store}".encode())
    for path in sorted(directory.iterdir()):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
