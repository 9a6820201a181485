"""Every route and every id of another tenant: as if it did not exist, in the answer and in the time it takes.

Generated from the OpenAPI document. A route, or a field of a body, that takes an id this file does not know
fails it.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from db.session import EVERY_TENANT, Database
from tests.api.everything import Everything, Having, Operation, absent
from tests.support.statements import Statements

NOT_IDS = {
    "version": "1",  # of an adapter, by number
    "chart": "sample-nll",  # of a report, by name
    "role_id": "role-viewer",  # the five that everybody has
    "rate_limit_id": "rl-*",  # of a model, by name
    "data_class": "files",  # by name
}
"""Path parameters that are the same for every tenant."""

_ID_FIELD = re.compile(r"(^|[._\]])(ids?|[a-z_]+_ids?|models?)(\[\])?$")
FIELDS_NOT_IDS = {
    "setLimit.model",  # a name as it is written, whether or not there is one
    "stop_token_ids",  # tokens
    "tax_id",  # as a tax office knows a company: text on invoices
    "access_key_id",  # of an S3 bucket that an adapter is imported from
    "role_id",  # of the five roles
    "entity_id",  # the name of an identity provider, which several organizations may have in common
    "models",  # names that a key may ask for: kept as they are written, looked up when it asks
    "model_ids",  # the same, of a project
    "base_model",  # the base, which everybody has
    "part_ids",  # of the upload in the path
    "createChatCompletion.id",  # of a call in the request's own messages
    "tokenize.id",  # the same
    "tool_call_id",  # the same
    "call_id",  # the same, of responses
    "placeLegalHold.object_id",  # of anything, also to come: it holds what of the organization has it
    "createShare.organization_id",  # another organization on purpose: an offer, which it may decline
    "exchangeToken.identity_provider_id",  # without a key: the issuer's signature decides
    "exchangeToken.service_account_id",
}

ALERT = {"currency": "USD", "interval": "month", "threshold_amount": 100}
BODIES: dict[str, dict[str, Any]] = {
    "updateAdapter": {"description": "mine"},
    "completeUpload": {"part_ids": ["part_1"]},
    "updateUser": {"role": "reader"},
    "updateWorkloadIdentityProvider": {"name": "mine"},
    "updateFederationRule": {"name": "mine"},
    "assignGroupRole": {"role_id": "role-viewer"},
    "updateProject": {"name": "mine"},
    "addProjectUser": {"role": "member", "email": "owner@ours.example"},
    "updateProjectUser": {"role": "member"},
    "createServiceAccount": {"name": "mine"},
    "updateServiceAccount": {"name": "mine"},
    "createServiceAccountKey": {"name": "mine"},
    "createProjectKey": {"name": "mine"},
    "updateProjectKey": {"name": "mine"},
    "rotateProjectKey": {},
    "updateModelPermissions": {"mode": "deny_list", "model_ids": ["sapling"]},
    "updateServiceTierSettings": {"enabled_tiers": "all"},
    "updateRateLimit": {"max_requests_per_1_minute": 1},
    "updateProjectSpendLimit": {"currency": "USD", "interval": "month", "threshold_amount": 100},
    "updateAdminKey": {"name": "mine"},
    "rotateAdminKey": {},
    "updateWebhookEndpoint": {"name": "mine"},
    "rotateWebhookSecret": {},
    "testWebhookEndpoint": {"event_type": "invoice.finalized"},
    "updateRetention": {"days": 30},
    "updateConversation": {"metadata": {}},
    "createConversationItems": {"items": [{"role": "user", "content": "mine"}]},
    "updateSpendAlert": ALERT,
    "createProjectSpendAlert": ALERT,
    "updateProjectSpendAlert": ALERT,
}
"""What is sent to routes whose path has an id, by their operation."""
MORE_BODIES: dict[str, list[dict[str, Any]]] = {"updateUser": [{"enabled": False}, {"enabled": True}]}
"""And what else, where that does something else."""

Fill = Callable[[Having, str], dict[str, Any]]
"""A body of ours in which one id is somebody's."""

RULE = {"attribute_matchers": {"sub": "x"}}
BUDGET = {"metric": "tokens_per_day", "amount": 1}
CHAT = [{"role": "user", "content": "hi"}]


def _continuing(ours: Having, one: str) -> dict[str, Any]:
    return {"model": "sapling", "input": "hi", "previous_response_id": one}


def _in_conversation(ours: Having, one: str) -> dict[str, Any]:
    return {"model": "sapling", "input": "hi", "conversation": {"id": one}}


def _referring_input(ours: Having, one: str) -> dict[str, Any]:
    return {"model": "sapling", "input": [{"type": "item_reference", "id": one}]}


def _referring_items(ours: Having, one: str) -> dict[str, Any]:
    return {"items": [{"type": "item_reference", "id": one}]}


FIELDS: dict[tuple[str, str], tuple[str, Fill]] = {
    ("createChatCompletion", "model"): ("model", lambda _, one: {"model": one, "messages": CHAT}),
    ("createCompletion", "model"): ("model", lambda _, one: {"model": one, "prompt": "hi"}),
    ("createResponse", "model"): ("model", lambda _, one: {"model": one, "input": "hi"}),
    ("countInputTokens", "model"): ("model", lambda _, one: {"model": one, "input": "hi"}),
    ("tokenize", "model"): ("model", lambda _, one: {"model": one, "prompt": "hi"}),
    ("detokenize", "model"): ("model", lambda _, one: {"model": one, "tokens": [5]}),
    ("createResponse", "previous_response_id"): ("response_id", _continuing),
    ("countInputTokens", "previous_response_id"): ("response_id", _continuing),
    ("createResponse", "conversation.id"): ("conversation_id", _in_conversation),
    ("countInputTokens", "conversation.id"): ("conversation_id", _in_conversation),
    **{
        (operation, f"{field}[].id"): ("item_id", fill)
        for operation, field, fill in (
            ("createResponse", "input", _referring_input),
            ("countInputTokens", "input", _referring_input),
            ("createConversation", "items", _referring_items),
            ("createConversationItems", "items", _referring_items),
        )
    },
    ("createAdapter", "file_ids"): (
        "file_id",
        lambda ours, one: {"name": "new", "base_model": "sapling", "file_ids": [one, ours.files[1]]},
    ),
    ("createAdapter", "upload_ids"): (
        "upload_id",
        lambda ours, one: {
            "name": "new",
            "base_model": "sapling",
            "upload_ids": [one, ours.ids["upload_id"]],
        },
    ),
    ("createAdapter", "calibration.file_id"): (
        "file_id",
        lambda ours, one: {
            "name": "new",
            "base_model": "sapling",
            "file_ids": ours.files,
            "calibration": {"file_id": one},
        },
    ),
    ("createAdapterVersion", "file_ids"): ("file_id", lambda ours, one: {"file_ids": [one, ours.files[1]]}),
    ("createAdapterVersion", "upload_ids"): (
        "upload_id",
        lambda ours, one: {"upload_ids": [one, ours.ids["upload_id"]]},
    ),
    ("createAdapterVersion", "calibration.file_id"): (
        "file_id",
        lambda ours, one: {"file_ids": ours.files, "calibration": {"file_id": one}},
    ),
    ("createBatch", "input_file_id"): (
        "file_id",
        lambda _, one: {
            "input_file_id": one,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
    ),
    ("createCalibrationJob", "model"): ("model", lambda _, one: {"model": one}),
    ("createCalibrationJob", "file_id"): (
        "file_id",
        lambda ours, one: {"model": ours.ids["model"], "version": 1, "file_id": one},
    ),
    ("createInvite", "projects[].id"): (
        "project_id",
        lambda _, one: {
            "email": "new@ours.example",
            "role": "reader",
            "projects": [{"id": one, "role": "member"}],
        },
    ),
    ("addProjectUser", "user_id"): ("user_id", lambda _, one: {"role": "member", "user_id": one}),
    ("createFederationRule", "project_id"): (
        "project_id",
        lambda ours, one: RULE | {"project_id": one, "service_account_id": ours.ids["service_account_id"]},
    ),
    ("createFederationRule", "service_account_id"): (
        "service_account_id",
        lambda ours, one: RULE | {"project_id": ours.ids["project_id"], "service_account_id": one},
    ),
    ("setLimit", "project_id"): ("project_id", lambda _, one: BUDGET | {"project_id": one}),
    ("setLimit", "api_key_id"): ("api_key_id", lambda _, one: BUDGET | {"api_key_id": one}),
    ("createProjectKey", "user_id"): ("user_id", lambda _, one: {"name": "k", "user_id": one}),
}
"""By operation and field: what kind of id it takes, and a body with one."""

QUERY_IDS = {
    "after": None,  # of whatever the list shows
    "before": None,
    "adapter_id": "adapter",
    "adapter_ids[]": "adapter",
    "api_key_ids[]": "api_key_id",
    "project_ids[]": "project_id",
    "user_ids[]": "user_id",
    "service_account_id": "service_account_id",
    "actor_ids[]": "user_id",
    "resource_ids[]": "project_id",
    "object_id": "file_id",
}
QUERIES_NOT_IDS = {"models[]"}
_ID_QUERY = re.compile(r"(after|before|[a-z_]*ids?(\[\])?|models\[\])$")
LISTED = {
    "listAdapters": "adapter",
    "listFiles": "file_id",
    "listShares": "share_id",
    "listReceivedShares": "received_share_id",
    "listCalibrationJobs": "job_id",
    "listProjects": "project_id",
    "listProjectUsers": "user_id",
    "listServiceAccounts": "service_account_id",
    "listProjectKeys": "api_key_id",
    "listAdminKeys": "key_id",
    "listUsers": "user_id",
    "listInvites": "invite_id",
    "listGroups": "group_id",
    "listWorkloadIdentityProviders": "workload_identity_provider_id",
    "listFederationRules": "workload_identity_federation_rule_id",
    "listLimits": "limit_id",
    "listWebhookEndpoints": "webhook_endpoint_id",
    "listWebhookDeliveries": "delivery_id",
    "listSpendAlerts": "alert_id",
    "listDeletionCertificates": "certificate_id",
    "listProjectSpendAlerts": "alert_id",
    "listRateLimits": "api_key_id",
    "listInputItems": "item_id",
    "listConversationItems": "item_id",
}
"""Of which kind the ids of a list are; of others they are nothing that a path takes."""

NOT_THERE = {
    "retrieveCalibrationReport",  # its job has measured nothing yet
    "retrieveCalibrationReportPage",
    "retrieveCalibrationChart",
    "retrieveSpendLimit",  # none is set
    "retrieveProjectSpendLimit",
    "retrieveModelPermissions",
    "retrieveSpendAlert",  # ours is a project's
}
"""Of routes without another's id in them, those that have nothing of ours to show."""

ROUNDS, CALLS = 20, 3


@dataclass(frozen=True)
class Pair:
    """The same request about something of another tenant's, and about something nobody has."""

    operation: Operation
    about: str
    foreign: tuple[str, Any]
    nobodys: tuple[str, Any]
    ids: tuple[str, str]


def pairs(both: Everything) -> list[Pair]:
    ours, theirs = both.ours, both.theirs
    own = ours.ids | NOT_IDS
    found = []
    for operation in both.operations():
        ids = [name for name in operation.path_parameters if name not in NOT_IDS]
        unknown = set(ids) - set(ours.ids)
        assert not unknown, f"{operation.name}: the matrix does not know what {unknown} are"
        for name in ids:
            found += [
                Pair(
                    operation,
                    name,
                    (operation.url(own | {name: foreign}), body),
                    (operation.url(own | {name: nobodys}), body),
                    (foreign, nobodys),
                )
                for foreign, nobodys in forms(theirs, name)
                for body in (body_of(operation, ours), *MORE_BODIES.get(operation.name, ()))
            ]
        for field in operation.fields():
            last = field.rpartition(".")[2]
            if _ID_FIELD.search(field) is None or {last, f"{operation.name}.{last}"} & FIELDS_NOT_IDS:
                continue
            assert (operation.name, field) in FIELDS, (
                f"{operation.name}: the matrix does not know what {field} is"
            )
            kind, fill = FIELDS[operation.name, field]
            for foreign, nobodys in forms(theirs, kind):
                url = operation.url(own)
                found.append(
                    Pair(
                        operation,
                        field,
                        (url, fill(ours, foreign)),
                        (url, fill(ours, nobodys)),
                        (foreign, nobodys),
                    )
                )
    return found


def forms(whose: Having, kind: str) -> list[tuple[str, str]]:
    """How a thing of this kind can be asked for, each beside one that is not there."""
    one = whose.ids[kind]
    if kind == "model":
        adapter_id, missing = whose.ids["adapter"], "sapling:absent-adapter"[: len(one)]
        shared = whose.ids["shared_model"]
        base, nobodys = shared.partition("/")[0], "/absent-shared"
        return [
            (one, missing),
            (f"{one}@1", f"{missing}@1"),
            (adapter_id, absent(adapter_id)),
            (shared, f"{base}{nobodys}"[: len(shared)]),
        ]
    if kind == "adapter":
        name = whose.ids["model"].partition(":")[2]
        return [(one, absent(one)), (name, "absent-adapter"[: len(name)])]
    return [(one, absent(one))]


def body_of(operation: Operation, ours: Having) -> Any:
    if operation.name == "createFederationRule":
        return RULE | {name: ours.ids[name] for name in ("project_id", "service_account_id")}
    if operation.name == "createShare":
        return {"organization_id": ours.ids["organization_id"]}
    if operation.name == "createAdapterVersion":
        return {"file_ids": ours.files}
    content = operation.said.get("requestBody", {}).get("content", {})
    if "multipart/form-data" in content:
        return b"a form that is not read"
    if content:
        assert operation.name in BODIES, f"{operation.name}: the matrix does not know what to send"
    return BODIES.get(operation.name)


async def send(both: Everything, operation: Operation, request: tuple[str, Any]) -> httpx.Response:
    """With the kind of key that the route wants."""
    url, body = request
    client = both.ours.admin if operation.of_account else both.ours.inference
    if isinstance(body, bytes):
        headers = {"content-type": "multipart/form-data; boundary=x"}
        return await client.request(operation.verb, url, content=body, headers=headers)
    return await client.request(operation.verb, url, json=body)


async def rows(database: Database, tenant_id: str) -> str:
    """Everything stored of a tenant, but for when its keys were used."""
    async with database.read(EVERY_TENANT) as session:
        tables = "SELECT table_name FROM information_schema.columns WHERE column_name = 'tenant_id'"
        found = {}
        for table in sorted((await session.execute(text(tables))).scalars()):
            query = f"SELECT to_jsonb(t) - 'last_used_at' FROM {table} t WHERE tenant_id = :tenant"
            stored = (await session.execute(text(query), {"tenant": tenant_id})).scalars()
            found[table] = sorted(json.dumps(row, sort_keys=True) for row in stored)
    assert found["adapters"], "the tables are read"
    return json.dumps(found)


async def test_what_is_anothers_is_answered_like_what_nobody_has(
    both: Everything, database: Database
) -> None:
    before = [await rows(database, having.tenant_id) for having in (both.ours, both.theirs)]
    asked = pairs(both)
    for pair in asked:
        answers = [await send(both, pair.operation, one) for one in (pair.foreign, pair.nobodys)]
        where = f"{pair.operation.name} of another's {pair.about}"
        assert [answer.status_code for answer in answers] == [404, 404], (where, answers[0].text)
        shown = [answer.text.replace(one, "ID") for answer, one in zip(answers, pair.ids, strict=True)]
        assert shown[0] == shown[1], where
        kept = [dict(answer.headers) | {"x-request-id": "", "content-length": ""} for answer in answers]
        assert kept[0] == kept[1], where
        assert await same_queries(both, database, pair), f"{where}: other queries, so another time"
    assert len({pair.operation.name for pair in asked}) >= 50
    assert before == [await rows(database, having.tenant_id) for having in (both.ours, both.theirs)]


async def test_what_is_anothers_takes_as_long_as_what_nobody_has(both: Everything) -> None:
    """Medians of calls that take turns. A machine that is busy with something else makes either slow: who
    differs is measured anew, and a difference that is there stays.
    """
    first = {(pair.operation.name, pair.about): pair for pair in reversed(pairs(both))}
    for pair in first.values():
        for _ in range(ROUNDS):
            foreign, nobodys = await medians(both, pair)
            if abs(foreign - nobodys) < max(0.25 * min(foreign, nobodys), 0.0005):
                break
        else:
            pytest.fail(f"{pair.operation.name}: {pair.about} of another's {foreign}, of nobody's {nobodys}")


async def same_queries(both: Everything, database: Database, pair: Pair) -> bool:
    """Asked again where they differ: now and then a key's use is noted on the side."""
    for _ in range(3):
        seen = []
        for one in (pair.foreign, pair.nobodys):
            with Statements(database) as statements:
                await send(both, pair.operation, one)
            seen.append(statements.seen)
        if seen[0] == seen[1]:
            return True
    return False


async def medians(both: Everything, pair: Pair) -> tuple[float, float]:
    """Seconds of either request."""
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for call in range(CALLS):
        for which in (0, 1) if call % 2 else (1, 0):
            began = time.perf_counter()
            await send(both, pair.operation, (pair.foreign, pair.nobodys)[which])
            seconds[which].append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


async def test_lists_and_filters_show_nothing_of_another_tenant(both: Everything) -> None:
    own, theirs = both.ours.ids | NOT_IDS, both.theirs.ids
    for operation in both.operations():
        if operation.verb != "get" or not operation.path.startswith("/v1/"):
            continue
        base = operation.url(own)
        required = {"start_time": "0"} if "start_time" in operation.query_parameters else {}
        answer = await _look(both, operation, base, required)
        if operation.name not in NOT_THERE:
            assert answer.status_code == 200, (operation.name, answer.text)
        for kind, one in theirs.items():
            assert one not in answer.text, (operation.name, kind)
        for name in operation.query_parameters:
            if _ID_QUERY.fullmatch(name) is None or name in QUERIES_NOT_IDS:
                continue
            assert name in QUERY_IDS, f"{operation.name}: the matrix does not know what {name} is"
            kind = QUERY_IDS[name] or LISTED.get(operation.name)
            if kind is None:
                continue
            answers = [
                await _look(both, operation, base, required | {name: one})
                for one in (theirs[kind], absent(theirs[kind]))
            ]
            assert answers[0].status_code == answers[1].status_code, (operation.name, name)
            shown = [
                answer.text.replace(one, "ID")
                for answer, one in zip(answers, (theirs[kind], absent(theirs[kind])), strict=True)
            ]
            assert shown[0] == shown[1], (operation.name, name)


async def _look(both: Everything, operation: Operation, url: str, query: dict[str, str]) -> httpx.Response:
    client = both.ours.admin if operation.of_account else both.ours.inference
    return await client.get(url, params=query)
