"""Every page of the console, as its routes have it, with something behind each.

Owns what stands for a path's parameters: a route with one that is not known here fails the tests that walk
all pages, so that no new page is forgotten. Names of things are the test's to give.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from starlette.routing import BaseRoute, Route

from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from adapters.service import AdapterChanges
from adapters.shares import Offer
from adapters.submission import Submission
from batches.service import BatchService, NewBatch
from billing.notifications.events import SPEND_ALERT
from billing.rates import Rate
from billing.reconciliation.service import ReconciliationService
from billing.spend.alerts import Threshold
from db.session import EVERY_TENANT
from engine.protocol import AdapterRef, Usage
from engine.signing.keys import SigningKey
from retention.certifying import Certifier
from retention.objects import delete_owed_objects
from retention.service import RetentionService
from retention.signing import CertificateSigner
from sla.incidents.service import Incidents
from tenants.actors import OPERATOR
from tenants.key_secrets import KeySecrets
from tenants.provisioning.profiles import GroupProfile
from tenants.refusals.recorder import RefusedRequest
from tenants.refusals.repository import RefusalWriter
from tenants.retention.classes import DEFAULT_BOUNDS
from tests.admin.conftest import Site
from tests.admin.reports import finish_with_report, report_of
from tests.admin.test_billing import invoiced
from tests.support.booked import Booked, book, request
from tests.support.onboarding import BASE_DIGEST, SAPLING, SECRET
from tests.support.saml_provider import certificate, metadata

PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
OPERATORS = "/operator"
"""Below it are the pages of those who run the service."""
LEAD_ELSEWHERE = {"/sign-in", "/sign-in/code", "/sign-in/sso", "/operator"}
"""Whoever is signed in already is sent on."""
SAML_START, SAML_METADATA = "/saml/{organization}/start", "/saml/{organization}/metadata"
_SAML_FINISH = "/saml/{organization}/finish"

Naming = Callable[[str], str]


@dataclass
class Furnished:
    """A tenant with one of everything."""

    things: dict[str, str] = field(default_factory=dict)
    """By the name of a path's parameter."""
    failed_adapter: str = ""

    @property
    def leading_elsewhere(self) -> set[str]:
        return LEAD_ELSEWHERE | {self.path(SAML_START), self.path(_SAML_FINISH)}

    def path(self, template: str) -> str:
        def stand_in(found: re.Match[str]) -> str:
            if found[1] not in self.things:
                pytest.fail(f"say in tests/admin/every_page.py what {found[0]} is in {template}")
            return self.things[found[1]]

        return PARAMETER.sub(stand_in, template)


def routes(site: Site) -> Iterator[tuple[str, str]]:
    """Method and path of each, as the console's app has them."""
    (mount,) = site.app.routes
    inner: Any = mount
    while not (isinstance(inner, list)):
        inner = getattr(inner, "_app", None) or getattr(inner, "routes", None) or inner.app
    yield from _below(inner)


def _below(found: Iterable[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in found:
        if isinstance(route, Route):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield method, route.path


def pages(site: Site, furnished: Furnished) -> list[str]:
    """Paths of everything that can be asked for."""
    paths = [furnished.path(path) for method, path in routes(site) if method == "GET"]
    assert len(paths) > 50, "these are the console's routes"
    return [*paths, f"/adapters/{furnished.failed_adapter}"]


async def furnish(site: Site, named: Naming) -> Furnished:
    """One of everything, named by the test. Of those who look on, signed-in people are the test's to make."""
    made = Furnished()
    await _organisation(site, named, made)
    await _adapters(site, named, made)
    await _billing(site, named, made)
    await _service(site, named, made)
    return made


async def _organisation(site: Site, named: Naming, made: Furnished) -> None:
    tenant, account = site.tenant_id, site.account
    await _execute(site, "UPDATE tenants SET name = :name WHERE id = :id", name=named("tenant"), id=tenant)
    project = await account.projects.create(tenant, named("project"), OPERATOR)
    (user, *_) = await account.members.list(tenant, newest_first=False)
    await account.members.update(tenant, user.id, OPERATOR, name=named("user"))
    key = await site.keys.create(tenant, named("key"), OPERATOR, project_id=project.id)
    robot = await account.service_accounts.create(tenant, project.id, named("service account"), OPERATOR)
    made.things["account"] = robot.id
    email = f"{named('invited')[:40]}@x".replace(" ", "/")
    await account.invites.create(tenant, email, "developer", OPERATOR)
    token = await account.scim_tokens.create(tenant, named("SCIM token"), OPERATOR)
    group = await account.provisioned_groups.create(tenant, GroupProfile(named("group")), OPERATOR)
    made.things |= {"scim_token": token.row.id, "group": group.id, "organization": tenant}
    saml = {"metadata": metadata(certificate("idp"), entity_id=named("SAML entity"))}
    attributes = {name: named(name) for name in ("email_attribute", "groups_attribute")}
    await account.saml_connections.set(tenant, saml | attributes, OPERATOR)
    await account.provisioned_groups.create(tenant, GroupProfile(named("own")), OPERATOR, by_hand=True)
    issuer = {"name": named("issuer"), "issuer": "https://ci.example", "audience": named("audience")}
    trusted = await account.workload_identities.create_provider(tenant, issuer, OPERATOR)
    matching = {"matchers": {named("claim"): named("value")}, "name": named("rule")}
    rule = await account.workload_identities.create_rule(
        tenant, trusted.id, (project.id, robot.id), matching, OPERATOR
    )
    made.things |= {"issuer": trusted.id, "rule": rule.id}
    pem = SigningKey.make().public.pem
    signing_key = await account.signing_keys.add(tenant, named("signing key"), pem, OPERATOR)
    made.things["signing_key"] = signing_key.id
    hold = await RetentionService(site.place.database).place_hold(
        tenant, named("hold"), OPERATOR, object_id="conv_held"
    )
    made.things |= {"data_class": "files", "hold": hold.id, "certificate": await certified_file(site)}
    made.things |= {"project": project.id, "user": user.id, "key": key.id, "tenant": tenant}


async def certified_file(site: Site) -> str:
    """Returns the id of the certificate of a file that was deleted on request."""
    place = site.place
    file = await place.files.create(site.tenant_id, None, "batch", "gone.jsonl", b"{}", max_bytes=100)
    await place.files.delete(site.tenant_id, file.id)
    await delete_owed_objects(place.database, place.store)
    signer = CertificateSigner(KeySecrets.of(SECRET))
    await Certifier(place.database, signer, DEFAULT_BOUNDS).run()
    [row] = await RetentionService(place.database).certificates(site.tenant_id, object_id=file.id)
    return row.id


async def _adapters(site: Site, named: Naming, made: Furnished) -> None:
    place, folder = site.place, SAPLING / "adapters" / "pirate"
    weights = (folder / WEIGHTS_FILE).read_bytes()
    config = json.loads((folder / CONFIG_FILE).read_text()) | {
        "base_model_name_or_path": named("base in config")
    }
    files = {
        f"{named('file of weights')}.safetensors": weights,
        f"{named('file of config')}.json": json.dumps(config).encode(),
    }
    ids = [
        (await place.files.create(site.tenant_id, None, "adapter", name, content, max_bytes=1 << 30)).id
        for name, content in files.items()
    ]
    create = place.onboarding.submission.create
    one = await create(place.caller(), "pirate", Submission(file_ids=ids), base_digest=BASE_DIGEST)
    adapter = one.adapter.id
    await finish_with_report(place, one, report_of(one, named("reason of the dtype")))
    await place.sign()
    await site.adapters.update(site.tenant_id, adapter, AdapterChanges(description=named("description")))
    told = "jsonb_build_object('config', jsonb_build_object('base_model_name_or_path', CAST(:name AS text)))"
    await _execute(
        site,
        f"UPDATE adapter_versions SET inspection = inspection || {told}, override_reason = :reason"
        " WHERE adapter_id = :id",
        name=named("value of the config"),
        reason=named("override"),
        id=adapter,
    )
    other = await place.create("corsair")
    await _execute(
        site,
        "UPDATE adapter_versions SET state = 'failed', error = :error, error_field = :field"
        " WHERE adapter_id = :id",
        error=named("refusal"),
        field=named("tensor at fault"),
        id=other.adapter.id,
    )
    upload = await place.uploads.create(
        *(site.tenant_id, None, "adapter", WEIGHTS_FILE, "application/octet-stream", 4), max_bytes=100
    )
    made.things |= {"adapter": adapter, "version": "1", "upload": upload.upload.id}
    made.things["job"] = one.job_id or ""
    made.failed_adapter = other.adapter.id
    made.things["share"] = await _shares(site, named, adapter)
    await _batch(site, named, made)


async def _shares(site: Site, named: Naming, adapter: str) -> str:
    """The adapter is shared with another organization, and that one shares and offers one of its own."""
    sharing, partner = site.place.onboarding.sharing, site.place.tenants[1]
    share = (await sharing.offer(site.tenant_id, adapter, Offer(partner, 1_250_000, 5_000_000))).row
    await sharing.accept(partner, share.id)
    for digit, name in (("a", "first"), ("b", "second")):
        made = await site.adapters.register_version(
            partner, name, AdapterRef(digit * 64, 8), base_digest=BASE_DIGEST
        )
        received = (
            await sharing.offer(partner, made.adapter_id, Offer(site.tenant_id, 750_000, 3_000_000))
        ).row
        if name == "first":
            await sharing.accept(site.tenant_id, received.id)
    return share.id


async def _batch(site: Site, named: Naming, made: Furnished) -> None:
    """A batch that has ended with both files and an error."""
    place, tenant = site.place, site.tenant_id
    file = await place.files.create(
        tenant, None, "batch", f"{named('file of a batch')}.jsonl", b"{}", max_bytes=100
    )
    new = NewBatch(file.id, "/v1/chat/completions", {named("key of a batch")[:60]: named("value of a batch")})
    batch = await BatchService(place.database, place.store).create(tenant, "key_1", new, OPERATOR)
    error = {"code": "invalid_value", "line": 1, "message": named("error of a batch"), "param": None}
    await _execute(
        site,
        "UPDATE batches SET status = 'completed', completed_at = now(), model = :model, total = 2,"
        " completed = 1, failed = 1, output_file_id = :file, error_file_id = :file,"
        " errors = jsonb_build_array(CAST(:error AS jsonb)) WHERE id = :id",
        id=batch.id,
        file=file.id,
        model=named("model of a batch"),
        error=json.dumps(error),
    )
    made.things["batch"] = batch.id


async def _billing(site: Site, named: Naming, made: Furnished) -> None:
    tenant, services = site.tenant_id, site.billing
    details = {"name": named("account"), "address": named("address"), "tax_id": named("tax")}
    await services.accounts.set_details(tenant, OPERATOR, details)
    made.things["invoice"] = (await invoiced(site)).id
    now = datetime.now(UTC)
    used = {"usage": Usage(1000, 400, 100), "rate": Rate("prc_1", 3_000_000, 1_000_000, 5_000_000)}
    asked = {"at": now.timestamp() - 60, "key": made.things["key"], "project_id": made.things["project"]}
    event = request(tenant, **asked, **used)
    await book(site.place.database, tenant, Booked([asked | used | {"name": event.request_id}]))
    threshold = Threshold(1_000_000, None, ["a@b.example"], named("subject of alerts"))
    alert = await services.alerts.create(tenant, made.things["project"], OPERATOR, threshold)
    endpoint, _ = await services.webhooks.create(
        tenant,
        OPERATOR,
        name=named("webhook"),
        url="https://hooks.example/'onerror='alert(7)//javascript:alert(7)",
        event_types=[SPEND_ALERT],
    )
    call = RefusedRequest(
        tenant_id=tenant,
        at=round((now - timedelta(seconds=90)).timestamp() * 1_000_000),
        request_id="req_of_every_page",
        status=404,
        code="model_not_found",
        message=named("message of an error"),
        key_id=made.things["key"],
        project_id=made.things["project"],
        method="POST",
        path=named("path"),
        model=named("model asked for"),
    )
    async with site.place.database.write(EVERY_TENANT) as session:
        await RefusalWriter(session).add([call])
    made.things["position"] = f"{call.at}!{call.request_id}"
    made.things |= {"id": event.request_id, "alert": alert.id, "endpoint": endpoint.id}


async def _service(site: Site, named: Naming, made: Furnished) -> None:
    """What those have who run it."""
    incidents = Incidents(site.place.database)
    incident = await incidents.open(
        named("incident"), "minor", OPERATOR, is_public=True, note=named("note of the incident")
    )
    long_ago = datetime(2025, 1, 1, tzinfo=UTC)  # of a day without a request
    books = ReconciliationService(site.place.database, site.redis)
    report = await books.reconcile(long_ago, long_ago + timedelta(days=1))
    plan = await site.account.plans.create("another")
    made.things |= {"incident": incident.id, "reconciliation": report.id, "plan": plan.id}


async def _execute(site: Site, statement: str, **values: Any) -> None:
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(text(statement), values)
