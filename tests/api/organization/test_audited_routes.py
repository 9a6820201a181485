"""Every route that changes something leaves an entry in the audit log, in the name of the key that asked.

Generated from the OpenAPI document: a new route fails this until it is called here or excepted, with a
reason.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from adapters.jobs.repository import JobRepository
from adapters.jobs.service import succeed
from adapters.object_keys import CONFIG_FILE
from adapters.shares import Offer
from engine.signing.keys import SigningKey
from tests.api.everything import MUTATING, Everything
from tests.api.organization.site import Party, Site
from tests.support.onboarding import SAPLING

EXCEPTIONS = {
    "createChatCompletion": "generates; the ledger has it",
    "createCompletion": "generates; the ledger has it",
    "createResponse": "generates; the ledger has it",
    **dict.fromkeys(("countInputTokens", "tokenize", "detokenize"), "changes nothing"),
    **dict.fromkeys(("createBatch", "cancelBatch"), "generates; the ledger has it"),
    **dict.fromkeys(
        (
            "cancelResponse",
            "deleteResponse",
            "createConversation",
            "updateConversation",
            "deleteConversation",
            "createConversationItems",
            "deleteConversationItem",
        ),
        "content, which comes and goes with requests; the log is of the account",
    ),
    "exchangeToken": "in the name of the issuer, with no key: see test_workload_identity.py",
    "addUploadPart": "bytes of an upload, whose completion is an entry",
}

PASSWORD = "correct horse battery"
CONFIG = (SAPLING / "adapters" / "pirate" / CONFIG_FILE).read_bytes()


class Caller:
    """Calls routes of the document by the names of their operations, and remembers which."""

    def __init__(self, both: Everything) -> None:
        self.world = both
        self.operations = {operation.name: operation for operation in both.operations()}
        self.called: set[str] = set()
        self.last_seq = 0

    async def mark(self) -> None:
        """What is in the log by now was put there by the test."""
        newest = await self.world.accounts.audit.list(self.world.ours.tenant_id, limit=1)
        self.last_seq = newest[0].seq

    async def __call__(
        self, name: str, body: Any = None, *, key: str | None = None, **values: str
    ) -> dict[str, Any]:
        operation, ours = self.operations[name], self.world.ours
        client = ours.admin if operation.of_account else ours.inference
        options: dict[str, Any] = body if isinstance(body, Form) else {"json": body}
        request_id = f"audited-{len(self.called)}-{name}"
        answer = await client.request(
            operation.verb,
            operation.url(ours.ids | {"version": "1"} | values),
            headers={"x-request-id": request_id},
            **options,
        )
        assert answer.status_code in (200, 201), (name, answer.text)
        key_id = ours.admin_key_id if operation.of_account else ours.inference_key_id
        await self._audited(name, answer, request_id, key_id)
        self.called.add(name)
        return answer.json()

    async def _audited(self, name: str, answer: httpx.Response, request_id: str, key_id: str) -> None:
        log = self.world.accounts.audit
        entries = await log.list(self.world.ours.tenant_id, newest_first=False, after=None, limit=1000)
        fresh = [entry for entry in entries if entry.seq > self.last_seq]
        assert fresh, f"{name} left no entry"
        self.last_seq = fresh[-1].seq
        shown = answer.json()
        for entry in fresh:
            assert entry.actor["request_id"] == request_id, name
            if name != "acceptInvite":  # by its token, with no key
                assert (entry.actor["type"], entry.actor["id"]) == ("api_key", key_id), name
            written = json.dumps([entry.details, entry.actor])
            for secret in (shown.get("value"), shown.get("token"), shown.get("signing_secret"), PASSWORD):
                assert secret is None or secret not in written, name


class Form(dict[str, Any]):
    """A body that is no JSON."""


async def files(call: Caller) -> None:
    form = {"files": {"file": (CONFIG_FILE, CONFIG)}, "data": {"purpose": "adapter"}}
    made = await call("createFile", Form(form))
    await call("deleteFile", file_id=made["id"])
    announced = {
        "bytes": len(CONFIG),
        "filename": CONFIG_FILE,
        "mime_type": "application/json",
        "purpose": "adapter",
    }
    upload = await call("createUpload", announced)
    path = f"/v1/uploads/{upload['id']}/parts"
    part = (await call.world.ours.inference.post(path, files={"data": ("part", CONFIG)})).json()
    await call("completeUpload", {"part_ids": [part["id"]]}, upload_id=upload["id"])
    await call("cancelUpload")


async def adapters(call: Caller) -> None:
    ours, place = call.world.ours, call.world.place
    new = {"name": "new", "base_model": "sapling", "file_ids": ours.files}
    made = await call("createAdapter", new)
    await call("deleteAdapter", adapter=made["id"])
    await call("updateAdapter", {"description": "changed"})
    jobs = {"paused": "pauseCalibrationJob", "queued": "resumeCalibrationJob"}
    for status, name in jobs.items():
        assert (await call(name))["status"] == status
    lease = await place.lease(ours.ids["job_id"])
    await place.pack(lease, "5")
    await place.finish(lease)
    third = await place.upload("to-json")
    await call.mark()
    await call("activateAdapterVersion", version="1")
    await call("rollbackAdapter")
    await call("disableAdapterVersion", version="1")
    await call("enableAdapterVersion", version="1")
    version = await call("createAdapterVersion", {"file_ids": third, "activate": False})
    assert version["version"] == 3


async def jobs(call: Caller) -> None:
    async with call.world.place.database.write(call.world.ours.tenant_id) as session:
        repository = JobRepository(session, call.world.ours.tenant_id)
        for job in await repository.open_jobs_of(call.world.ours.ids["adapter"], 1):
            succeed(session, job, {})  # as the worker does at its end
    job = await call("createCalibrationJob", {"model": call.world.ours.ids["model"], "version": 1})
    await call("cancelCalibrationJob", job_id=job["id"])


async def kept(call: Caller) -> None:
    await call("updateRetention", {"days": 30}, data_class="batches")
    hold = await call("placeLegalHold", {"reason": "case 7", "data_class": "files"})
    await call("liftLegalHold", legal_hold_id=hold["id"])


async def people(call: Caller) -> None:
    await call("updateDataRetention", {"retention_type": "zero_data_retention"})
    invite = await call("createInvite", {"email": "new@ours.example", "role": "reader"})
    await call("acceptInvite", {"token": invite["token"], "password": PASSWORD})
    await call("deleteInvite")
    await call("updateUser", {"role": "developer"})
    await call("updateUser", {"enabled": False})
    await call("updateUser", {"enabled": True})
    new = (await call.world.ours.admin.get("/v1/organization/users", params={"limit": 1})).json()["last_id"]
    await call("addProjectUser", {"role": "member", "user_id": new})
    await call("updateProjectUser", {"role": "owner"})
    await call("deleteProjectUser")
    await call("deleteUser")
    issuer = {"name": "ci", "type": "oidc", "issuer": "https://ci.example", "audience": "us"}
    provider = (await call("createWorkloadIdentityProvider", issuer))["id"]
    matching = {"attribute_matchers": {"sub": "x"}}
    ids = {name: call.world.ours.ids[name] for name in ("project_id", "service_account_id")}
    rule = await call("createFederationRule", matching | ids, workload_identity_provider_id=provider)
    values = {"workload_identity_provider_id": provider, "workload_identity_federation_rule_id": rule["id"]}
    await call("updateFederationRule", {"enabled": False}, **values)
    await call("deleteFederationRule", **values)
    await call("updateWorkloadIdentityProvider", {"enabled": False}, workload_identity_provider_id=provider)
    await call("deleteWorkloadIdentityProvider", workload_identity_provider_id=provider)
    token = await call("createScimToken", {"name": "Okta"})
    await call("deleteScimToken", scim_token_id=token["id"])
    pem = SigningKey.make().public.pem
    key = await call("createSigningKey", {"name": "release", "public_key": pem})
    await call("deleteSigningKey", signing_key_id=key["id"])
    await call("updateAdapterSigning", {"signed_adapters_only": True})
    await call("assignGroupRole", {"role_id": "role-developer"})
    await call("unassignGroupRole", role_id="role-developer")
    group = await call("createGroup", {"name": "Makers"})
    await call("deleteGroup", group_id=group["id"])
    await call("setSamlConnection", {"enabled": False})
    await call("deleteSamlConnection")


async def keys(call: Caller) -> None:
    made = await call("createAdminKey", {"name": "made"})
    await call("updateAdminKey", {"name": "changed"}, key_id=made["id"])
    rotated = await call("rotateAdminKey", {"grace_seconds": 0}, key_id=made["id"])
    await call("deleteAdminKey", key_id=rotated["id"])
    made = await call("createProjectKey", {"name": "made"})
    await call("updateProjectKey", {"networks": ["10.0.0.0/8"]}, api_key_id=made["id"])
    rotated = await call("rotateProjectKey", {}, api_key_id=made["id"])
    await call("deleteProjectKey", api_key_id=rotated["id"])


async def shared(call: Caller) -> None:
    partner, sharing = call.world.ours.ids["organization_id"], call.world.place.onboarding.sharing
    await call("endShare")
    await call("createShare", {"organization_id": partner, "output_surcharge": 1_000_000})
    theirs = (await call("leaveShare"))["adapter_id"]
    for answer in ("declineShare", "acceptShare"):
        offered = await sharing.offer(partner, theirs, Offer(call.world.ours.tenant_id, 1, 1))
        await call(answer, received_share_id=offered.row.id)


async def projects(call: Caller) -> None:
    account = await call("createServiceAccount", {"name": "robot"})
    assert account["api_key"]["value"]
    await call("createServiceAccountKey", {"name": "another"})
    await call("updateServiceAccount", {"role": "owner"})
    await call("deleteServiceAccount")
    await call("updateProject", {"name": "renamed"})
    await call("updateModelPermissions", {"mode": "deny_list", "model_ids": ["sapling"]})
    await call("deleteModelPermissions")
    await call("updateServiceTierSettings", {"default": "standard", "enabled_tiers": ["flex"]})
    made = await call("createProject", {"name": "made"})
    await call("archiveProject", project_id=made["id"])


async def limits(call: Caller) -> None:
    made = await call("setLimit", {"metric": "tokens_per_day", "amount": 1000})
    await call("deleteLimit", limit_id=made["id"])
    await call("updateRateLimit", {"max_requests_per_1_minute": 5}, rate_limit_id="rl-*")
    dollar = {"currency": "USD", "interval": "month", "threshold_amount": 100}
    await call("updateSpendLimit", dollar)
    await call("deleteSpendLimit")
    await call("updateProjectSpendLimit", dollar)
    await call("deleteProjectSpendLimit")


async def told(call: Caller) -> None:
    hook = {"name": "made", "url": "https://ours.example/made", "event_types": ["invoice.finalized"]}
    made = await call("createWebhookEndpoint", hook)
    await call("updateWebhookEndpoint", {"name": "changed"}, webhook_endpoint_id=made["id"])
    await call("rotateWebhookSecret", {}, webhook_endpoint_id=made["id"])
    await call("testWebhookEndpoint", {"event_type": "adapter.ready"}, webhook_endpoint_id=made["id"])
    await call("retryWebhookDelivery")
    await call("deleteWebhookEndpoint", webhook_endpoint_id=made["id"])
    alert = {"currency": "USD", "interval": "month", "threshold_percent": 80}
    made = await call("createSpendAlert", alert)
    await call("updateSpendAlert", alert, alert_id=made["id"])
    await call("deleteSpendAlert", alert_id=made["id"])
    made = await call("createProjectSpendAlert", alert)
    await call("updateProjectSpendAlert", alert, alert_id=made["id"])
    await call("deleteProjectSpendAlert", alert_id=made["id"])


async def paid(call: Caller) -> None:
    await call("updateBilling", {"email": "pay@acme.example"})
    await call("createBillingPortalSession", {})
    await call("createTopUp", {"amount": 2500})


PARTS: tuple[Callable[[Caller], Awaitable[None]], ...] = (
    files,
    kept,
    adapters,
    jobs,
    people,
    keys,
    limits,
    told,
    paid,
    shared,
    projects,
)


async def test_every_route_that_changes_something_leaves_an_entry(both: Everything) -> None:
    call = Caller(both)
    await call.mark()
    for part in PARTS:
        await part(call)
    changing = {name for name, operation in call.operations.items() if operation.verb in MUTATING}
    assert call.called >= changing - set(EXCEPTIONS), sorted(changing - call.called - set(EXCEPTIONS))
    assert set(EXCEPTIONS) <= changing, "an exception for a route that is there"
    log = both.accounts.audit
    assert await log.verify(both.ours.tenant_id) is None
    project = both.ours.ids["project_id"]
    seen = await both.ours.admin.get("/v1/organization/audit_logs", params={"limit": 100})
    assert any(entry.get("project", {}).get("id") == project for entry in seen.json()["data"])


def test_what_is_refused_leaves_none(site: Site, ours: Party) -> None:
    log = site.accounts.audit
    before = site.do(log.list(ours.tenant_id, limit=1))
    for path, body in (
        ("projects", {"name": "Default"}),
        ("projects", {"name": "x", "colour": "red"}),
        ("invites", {"email": ours.mail("owner"), "role": "reader"}),
        ("admin_api_keys", {"name": "k", "scopes": ["everything"]}),
        (f"projects/{ours.project_id}/users", {"role": "member", "user_id": "user_0"}),
    ):
        answer = site.ask("POST", f"/v1/organization/{path}", ours.admin_key, body)
        assert answer.status_code in (400, 404, 409), answer.text
    assert [entry.id for entry in site.do(log.list(ours.tenant_id, limit=1))] == [before[0].id]


def test_one_after_the_other_however_many_change_at_once(site: Site, ours: Party) -> None:
    def make(number: int) -> str:
        body = {"name": f"project {number}"}
        return str(site.ask("POST", "/v1/organization/projects", ours.admin_key, body).json()["id"])

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make, range(16)))
    entries = site.do(site.accounts.audit.list(ours.tenant_id, limit=16))
    assert {entry.target_id for entry in entries} == set(made)
    assert site.do(site.accounts.audit.verify(ours.tenant_id)) is None
