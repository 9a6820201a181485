"""Two tenants that have one of everything, the application in process, and what its OpenAPI document says.

Owns which kinds of ids there are and how to get one of each. What is tested of them is the tests' business.
"""

from __future__ import annotations

import copy
import hashlib
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import httpx
import redis.asyncio

from adapters.bases import Bases
from adapters.resolver import ModelResolver
from adapters.shares import Offer
from api.app import create_app
from api.assembly.stored_state import stored_state
from api.organization.limits import limit_id
from api.responses.bodies import new_body
from api.responses.schemas import ResponseRequest
from api.workload_identity.exchange import TokenExchange
from api.workload_identity.published_keys import PublishedKeys
from batches.service import BatchService, NewBatch
from billing.invoices.accounts import BillingAccounts
from billing.invoices.credits import CreditService
from billing.invoices.service import InvoiceService
from billing.invoices.settings import InvoiceSettings
from billing.notifications.events import INVOICE_FINALIZED
from billing.notifications.publishing import publish
from billing.notifications.sending import WebhookSender
from billing.notifications.service import WebhookService
from billing.payments.service import PaymentService
from billing.rates import Rate
from billing.request_ids import new_request_id
from billing.service import UsageReports
from billing.spend.alerts import SpendAlertService, Threshold
from conversations.owner import Owner
from conversations.responses.service import ResponseRecord
from db.base import new_id
from db.session import Database
from engine.protocol import AdapterRef, Usage
from engine.signing.keys import SigningKey
from retention.certifying import Certifier
from retention.objects import delete_owed_objects
from retention.service import RetentionService
from retention.signing import CertificateSigner
from sla.service import SlaReports
from tenants.actors import OPERATOR
from tenants.idempotency.records import IdempotencyRecords
from tenants.key_contexts import KeyContexts
from tenants.key_secrets import KeySecrets
from tenants.limits.kinds import Limit, Metric
from tenants.provisioning.profiles import GroupProfile
from tenants.quotas import Quotas
from tenants.resolver import KeyResolver
from tenants.retention.classes import DEFAULT_BOUNDS
from tenants.service import AccountServices, TenantService, account_services
from tenants.workload_identity.spent_tokens import SpentTokens
from tests.api.conftest import build
from tests.support import booked
from tests.support.databases import Content, SharedDatabase
from tests.support.documented import Documented
from tests.support.onboarding import SECRET, Scene, reopened, scene
from tests.support.saml_provider import certificate, metadata
from tests.support.silent_gateway import SilentGateway
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

MUTATING = frozenset({"post", "put", "patch", "delete"})
_TAIL = 10
_OF_ACCOUNT = ("/v1/organization", "/v1/sla", "/v1/webhook_")


class _Silent(WebhookSender):
    """Endpoints that take everything, without anybody being asked."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        return 200


SILENT = _Silent()
SIGNING_KEY = SigningKey.make()


@dataclass(frozen=True)
class Account:
    """What a tenant has: keys as their holders know them, and an id of every kind."""

    tenant_id: str
    admin_key: str
    inference_key: str
    admin_key_id: str
    inference_key_id: str
    ids: dict[str, str]
    """By the name of the path parameter that takes it."""
    files: list[str]
    """Of an adapter: weights and configuration."""
    serving: AdapterRef

    def having(self, app: Any) -> Having:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        admin, inference = [
            httpx.AsyncClient(
                transport=transport, base_url="http://test", headers={"authorization": f"Bearer {key}"}
            )
            for key in (self.admin_key, self.inference_key)
        ]
        return Having(**copy.deepcopy(vars(self)), admin=admin, inference=inference)


@dataclass(frozen=True)
class Having(Account):
    """A copy of it, with clients of an application."""

    admin: httpx.AsyncClient
    inference: httpx.AsyncClient


@dataclass(frozen=True)
class Kept:
    """Both tenants as they were when they were made: what is stored of them, and what their holders know."""

    accounts: tuple[Account, Account]
    rows: Content
    redis_keys: dict[bytes, tuple[int, bytes]]
    """With their ms to live, 0 for ever."""
    files: dict[Path, bytes]
    """Below the directory of objects and artifacts."""


_KEPT: list[Kept] = []
"""Of this process, once a test has made them: making them takes a hundred times as long as copying them."""


@dataclass
class Everything:
    place: Scene
    accounts: AccountServices
    app: Any
    ours: Having
    theirs: Having

    def operations(self) -> Iterator[Operation]:
        document = self.app.openapi()
        for path, verbs in document["paths"].items():
            for verb, said in verbs.items():
                yield Operation(verb, path, said["operationId"], said, document)


@dataclass(frozen=True)
class Operation:
    """A route, as the document has it."""

    verb: str
    path: str
    name: str
    said: dict[str, Any]
    document: dict[str, Any]

    @property
    def of_account(self) -> bool:
        """Asks for an admin key."""
        return self.path.startswith(_OF_ACCOUNT)

    @property
    def path_parameters(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    @property
    def query_parameters(self) -> list[str]:
        return [one["name"] for one in self.said.get("parameters", ()) if one["in"] == "query"]

    def url(self, values: dict[str, str]) -> str:
        return self.path.format(**{name: values[name] for name in self.path_parameters})

    def fields(self) -> list[str]:
        """Paths of the body's fields, as `calibration.file_id` and `projects[].id`."""
        content = self.said.get("requestBody", {}).get("content", {})
        return [field for form in content.values() for field in self._fields(form["schema"], "")]

    def _fields(self, schema: dict[str, Any], prefix: str) -> Iterator[str]:
        if "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            yield from self._fields(part, prefix)
        if "items" in schema and isinstance(schema["items"], dict):
            yield from self._fields(schema["items"], f"{prefix}[]")
        for name, inner in schema.get("properties", {}).items():
            field = f"{prefix}.{name}" if prefix else name
            yield field
            yield from self._fields(inner, field)


def absent(one: str) -> str:
    """An id of the same form and length, in the same place of every order, that nobody has."""
    digits = one[-_TAIL:]
    return one[:-_TAIL] + ("1" * _TAIL if digits != "1" * _TAIL else "2" * _TAIL)


@asynccontextmanager
async def open_everything(
    codec: TextCodec,
    shared: SharedDatabase,
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    directory: Path,
) -> AsyncIterator[Everything]:
    """Everything in `database`, which `shared` has just emptied, an empty Redis and an empty directory."""
    if not _KEPT:
        _KEPT.append(await _make(shared, database, redis_client, redis_url, directory))
    else:
        await _put(_KEPT[0], shared, redis_client, directory)
    accounts_made = _KEPT[0].accounts
    tenants = (accounts_made[0].tenant_id, accounts_made[1].tenant_id)
    async with reopened(database, redis_client, redis_url, directory, tenants) as place:
        keys = KeyResolver(database, redis_client, SECRET)
        models = ModelResolver(database, redis_client, Bases("sapling"))
        accounts = account_services(database, redis_client, SECRET)
        quotas = Quotas(redis_url, "everything")
        for part in (keys, models, quotas):
            await part.start()
        await eventually(lambda: keys.listening and models.listening and not quotas.away)
        services = replace(
            build(codec).services,
            keys=keys,
            models=models,
            usage=UsageReports(database),
            files=place.files,
            uploads=place.uploads,
            batches=BatchService(database, place.store),
            retention=RetentionService(database),
            onboarding=place.onboarding,
            accounts=accounts,
            quotas=quotas,
            sla_reports=SlaReports(database),
            webhooks=WebhookService(database, SILENT),
            spend_alerts=SpendAlertService(database),
            payments=PaymentService(
                database,
                SilentGateway(),
                return_url="https://us.example/",
                accounts=BillingAccounts(database, redis_client),
            ),
            invoices=InvoiceService(database, redis_client, InvoiceSettings()),
            credits=CreditService(database, redis_client),
            idempotency=IdempotencyRecords(redis_client),
            state=stored_state(database, SECRET),
            token_exchange=TokenExchange(
                accounts.workload_identities, PublishedKeys(), SpentTokens(redis_client)
            ),
        )
        app = Documented(create_app(services))
        ours, theirs = [account.having(app) for account in accounts_made]
        try:
            yield Everything(place, accounts, app, ours, theirs)
        finally:
            for having in (ours, theirs):
                await having.admin.aclose()
                await having.inference.aclose()
            for part in (quotas, models, keys):
                await part.close()


async def _make(
    shared: SharedDatabase,
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    directory: Path,
) -> Kept:
    async with scene(database, redis_client, redis_url, directory) as place:
        accounts = account_services(database, redis_client, SECRET)
        ours, theirs = [await _account(place, accounts, number) for number in (0, 1)]
        await place.sign()
    redis_keys = {
        key: (max(0, await redis_client.pttl(key)), await redis_client.dump(key))
        for key in await redis_client.keys()
    }
    return Kept((ours, theirs), shared.content(), redis_keys, _files(directory))


async def _put(
    kept: Kept, shared: SharedDatabase, redis_client: redis.asyncio.Redis, directory: Path
) -> None:
    shared.put(kept.rows)
    for key, (lives_ms, value) in kept.redis_keys.items():
        await redis_client.restore(key, lives_ms, value)
    for path, content in kept.files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)


def _files(directory: Path) -> dict[Path, bytes]:
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def _account(place: Scene, accounts: AccountServices, number: int) -> Account:
    tenant, name = place.tenants[number], ("ours", "theirs")[number]
    files = await place.upload("pirate", tenant=number)
    upload = await place.uploads.create(
        tenant, None, "adapter", "adapter_config.json", "application/json", 100, max_bytes=1 << 20
    )
    made = await place.create(f"{name}-adapter", tenant=number)
    serving = await place.make_ready(made, str(number + 1))
    pending = await place.add(made.adapter.id, "sql", tenant=number)
    project = await accounts.projects.create(tenant, "shared", OPERATOR)
    owner = await accounts.users.create(tenant, f"owner@{name}.example", "a long password")
    user = await accounts.users.create(tenant, f"user@{name}.example", "a long password", role="viewer")
    await accounts.members.add_to_project(tenant, project.id, user.user_id, "member", OPERATOR)
    invite = await accounts.invites.create(tenant, f"guest@{name}.example", "viewer", OPERATOR)
    account = await accounts.service_accounts.create(tenant, project.id, "robot", OPERATOR)
    token = await accounts.scim_tokens.create(tenant, "provider", OPERATOR)
    signing_key = await accounts.signing_keys.add(tenant, "release", SIGNING_KEY.public.pem, OPERATOR)
    group = await accounts.provisioned_groups.create(tenant, GroupProfile("team"), OPERATOR)
    await accounts.provisioned_groups.set_role(tenant, group.id, "viewer", OPERATOR)
    saml = {"metadata": metadata(certificate("idp"), entity_id=f"https://idp.{name}.example")}
    await accounts.saml_connections.set(tenant, saml, OPERATOR)
    issuer = await accounts.workload_identities.create_provider(
        tenant, {"name": "ci", "issuer": f"https://{name}.example", "audience": name}, OPERATOR
    )
    rule = await accounts.workload_identities.create_rule(
        tenant, issuer.id, (project.id, account.id), {"matchers": {"sub": "x"}}, OPERATOR
    )
    admin = await accounts.keys.create(tenant, "admin", OPERATOR, kind="admin")
    spare = await accounts.keys.create(tenant, "spare", OPERATOR, kind="admin")
    inference = await accounts.keys.create(tenant, "inference", OPERATOR)
    budget = Limit("project", project.id, "", Metric.TOKENS_PER_MONTH, 10**9)
    await accounts.limits.set(tenant, OPERATOR, budget)
    of_project = await accounts.keys.create(tenant, "of project", OPERATOR, project_id=project.id)
    webhooks = WebhookService(place.database, SILENT)
    endpoint, _ = await webhooks.create(
        tenant, OPERATOR, name="hook", url=f"https://{name}.example/", event_types=[INVOICE_FINALIZED]
    )
    async with place.database.write(tenant) as session:
        await publish(session, tenant, INVOICE_FINALIZED, {}, key="first", recipients=())
    deliveries = await webhooks.deliveries(tenant, endpoint.id, after=None, limit=1, newest_first=True)
    alert = await SpendAlertService(place.database).create(
        tenant, project.id, OPERATOR, Threshold(10**6, None)
    )
    asked = booked.request(tenant, booked.START, usage=Usage(10, 5, 5), key=inference.id)
    paid = booked.request(tenant, booked.START, usage=Usage(10, 5, 5), rate=Rate("prc_1", 10**12, 0, 0))
    await booked.write(place.database, [asked, paid])
    billing = InvoiceService(place.database, place.redis, InvoiceSettings())
    invoice = await billing.finalize(tenant, date(2026, 10, 1), now=datetime(2026, 11, 2, tzinfo=UTC))
    partner, offered, received, shared_model = await _shares(place, tenant, made.adapter.id, name)
    lines = await place.files.create(tenant, None, "batch", "a.jsonl", b"{}", max_bytes=100)
    batches = BatchService(place.database, place.store)
    batch = await batches.create(tenant, inference.id, NewBatch(lines.id, "/v1/chat/completions"), OPERATOR)
    hold = await RetentionService(place.database).place_hold(tenant, "case", OPERATOR, object_id="conv_held")
    assert invoice is not None
    assert pending.job_id is not None
    assert owner.tenant_id == tenant
    ids = {
        "adapter": made.adapter.id,
        "file_id": files[0],
        "upload_id": upload.upload.id,
        "share_id": offered,
        "received_share_id": received,
        "shared_model": shared_model,
        "organization_id": partner,
        "job_id": pending.job_id,
        "batch_id": batch.id,
        "model": f"sapling:{name}-adapter",
        "project_id": project.id,
        "user_id": user.user_id,
        "invite_id": invite.invite.id,
        "scim_token_id": token.row.id,
        "signing_key_id": signing_key.id,
        "workload_identity_provider_id": issuer.id,
        "workload_identity_federation_rule_id": rule.id,
        "group_id": group.id,
        "key_id": spare.id,
        "api_key_id": of_project.id,
        "service_account_id": account.id,
        "limit_id": limit_id(budget),
        "generation_id": asked.request_id,
        "webhook_endpoint_id": endpoint.id,
        "delivery_id": deliveries[0][0].id,
        "alert_id": alert.id,
        "invoice_id": invoice.id,
        "legal_hold_id": hold.id,
        "certificate_id": await _certificate(place, tenant),
        **await _stored(place.database, inference.id, tenant),
    }
    return Account(
        tenant,
        admin.plaintext,
        inference.plaintext,
        admin.id,
        inference.id,
        ids,
        files,
        serving,
    )


async def _certificate(place: Scene, tenant: str) -> str:
    """The certificate of a file that was deleted on request."""
    file = await place.files.create(tenant, None, "batch", "gone.jsonl", b"{}", max_bytes=100)
    await place.files.delete(tenant, file.id)
    await delete_owed_objects(place.database, place.store)
    signer = CertificateSigner(KeySecrets.of(SECRET))
    await Certifier(place.database, signer, DEFAULT_BOUNDS).run()
    [row] = await RetentionService(place.database).certificates(tenant, object_id=file.id)
    return row.id


async def _shares(place: Scene, tenant: str, adapter_id: str, name: str) -> tuple[str, str, str, str]:
    """A partner, an offer to it of this adapter, and an accepted share of the partner's, with its model."""
    partner = (await TenantService(place.database, place.redis).create_tenant(f"partner of {name}")).id
    sharing, adapters = place.onboarding.sharing, place.onboarding.adapters
    offered = await sharing.offer(tenant, adapter_id, Offer(partner, 1, 1))
    digest = hashlib.sha256(name.encode()).hexdigest()
    ref = AdapterRef(digest, 8)
    theirs = await adapters.register_version(partner, f"{name}-shared", ref, base_digest="b" * 64)
    received = await sharing.offer(partner, theirs.adapter_id, Offer(tenant, 1, 1))
    await sharing.accept(tenant, received.row.id)
    return partner, offered.row.id, received.row.id, received.row.model


async def _stored(database: Database, key_id: str, tenant: str) -> dict[str, str]:
    """A response, and a conversation with an item, of the project of this key."""
    caller = await KeyContexts(database).of(tenant, key_id)
    owner, state = Owner.of(caller), stored_state(database, SECRET)
    item: dict[str, Any] = {"id": new_id("msg"), "type": "message", "role": "user", "status": "completed"}
    item["content"] = [{"type": "input_text", "text": "hi"}]
    now = time.time()
    response_id = new_request_id("resp", now)
    body = new_body(
        ResponseRequest(model="sapling", input="hi"), response_id, now, "sapling", "default", True
    )
    body["status"] = "completed"
    record = ResponseRecord(response_id, "completed", now, body, [item], is_background=True)
    await state.responses.save(owner, record)
    conversation = await state.conversations.create(owner, {}, [item])
    return {"response_id": response_id, "conversation_id": conversation.id, "item_id": item["id"]}
