"""Tokens of a CI system for keys: an issuer that is really asked, and all that a token can say wrongly."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx
import openai
import pytest
import redis.asyncio
from openai.auth._workload import WorkloadIdentityAuth

from api.app import create_app
from api.workload_identity import published_keys
from api.workload_identity.exchange import TokenExchange
from api.workload_identity.published_keys import PublishedKeys, read_keys
from db.session import Database
from tenants.actors import OPERATOR
from tenants.audit.repository import AuditFilter
from tenants.outbound.errors import EndpointUnreachable
from tenants.resolver import KeyResolver
from tenants.service import AccountServices, account_services
from tenants.workload_identity.matching import check_matchers, claims_match
from tenants.workload_identity.spent_tokens import SpentTokens
from tests.api.conftest import build
from tests.support.documented import Documented
from tests.support.openid_provider import (
    OpenIdProvider,
    new_key,
    signed,
    signed_by_another,
    signed_by_client_secret,
    signed_with_public_key,
    unsigned,
)
from tests.support.serving import served
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

SECRET = "a server's secret of enough length"
PROVIDERS = "/v1/organization/workload_identity_providers"
AUDIENCE = "https://rootstock.example"
SUBJECT = "repo:acme/app:ref:refs/heads/main"
GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"


@dataclass
class Ci:
    """An organization, its CI system, and the rule for it."""

    issuer: OpenIdProvider
    accounts: AccountServices
    admin: httpx.AsyncClient
    tenant_id: str
    project_id: str
    account_id: str
    provider_id: str = ""
    rule_id: str = ""

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        found = {"iss": self.issuer.issuer, "aud": AUDIENCE, "sub": SUBJECT, "iat": now, "exp": now + 300}
        found |= {"repository": "acme/app", "jti": str(time.perf_counter_ns()), **changed}
        return {name: value for name, value in found.items() if value is not None}

    def token(self, **changed: Any) -> str:
        return signed(self.issuer.key, self.claims(**changed))

    async def exchange(self, token: str, **changed: Any) -> httpx.Response:
        body = {"grant_type": GRANT, "subject_token": token, "subject_token_type": JWT}
        body |= {"identity_provider_id": self.provider_id, "service_account_id": self.account_id, **changed}
        return await self.admin.post("/v1/oauth/token", json=body, headers={"authorization": ""})

    async def is_valid(self, key: str) -> bool:
        answer = await self.admin.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        return answer.status_code == 200

    async def set(self, **changed: Any) -> None:
        answer = await self.admin.post(f"{PROVIDERS}/{self.provider_id}", json=changed)
        assert answer.status_code == 200, answer.text


@pytest.fixture
async def ci(
    codec: TextCodec, database: Database, redis_client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Ci]:
    monkeypatch.setattr(published_keys, "ASK_AGAIN_S", 0.0)
    accounts = account_services(database, redis_client, SECRET)
    keys = KeyResolver(database, redis_client, SECRET)
    published = PublishedKeys(http_allowed=True, private_allowed=True)
    exchange = TokenExchange(accounts.workload_identities, published, SpentTokens(redis_client))
    services = replace(build(codec).services, keys=keys, accounts=accounts, token_exchange=exchange)
    tenant = await accounts.tenants.create_tenant("acme")
    project = await accounts.projects.default(tenant.id)
    robot = await accounts.service_accounts.create(tenant.id, project.id, "ci", OPERATOR)
    admin = await accounts.keys.create(tenant.id, "admin", OPERATOR, kind="admin")
    issuer = OpenIdProvider()
    transport = httpx.ASGITransport(Documented(create_app(services)), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {admin.plaintext}"}
    async with (
        AsyncExitStack() as opened,
        served(issuer.app) as issuer.issuer,
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
    ):
        await keys.start()
        opened.push_async_callback(keys.close)
        await eventually(lambda: keys.listening)
        made = Ci(issuer, accounts, client, tenant.id, project.id, robot.id)
        body = {"name": "GitHub", "type": "oidc", "issuer": issuer.issuer, "audience": AUDIENCE}
        created = await client.post(PROVIDERS, json=body)
        assert created.status_code == 200, created.text
        made.provider_id = created.json()["id"]
        rule = {"project_id": project.id, "service_account_id": robot.id}
        rule["attribute_matchers"] = {"sub": "repo:acme/app:*", "repository": "acme/app"}
        path = f"{PROVIDERS}/{made.provider_id}/federation_rules"
        made.rule_id = (await client.post(path, json=rule)).json()["id"]
        yield made


async def test_a_token_is_exchanged_for_a_short_lived_key_that_is_audited(ci: Ci) -> None:
    answer = await ci.exchange(ci.token())

    made = answer.json()
    assert answer.status_code == 200, answer.text
    assert (made["token_type"], made["expires_in"]) == ("Bearer", 3600)
    assert await ci.is_valid(made["access_token"])
    (shown,) = await ci.accounts.keys.list(ci.tenant_id, service_account_id=ci.account_id)
    row = shown[0]
    assert row.expires_at is not None
    assert 3500 < (row.expires_at - row.created_at).total_seconds() < 3601
    (entry, *_) = await ci.accounts.audit.list(ci.tenant_id, AuditFilter(types=["api_key.created"]))
    assert (entry.actor["type"], entry.actor["id"]) == ("workload_identity", ci.provider_id)
    assert entry.details["federation_rule_id"] == ci.rule_id
    assert SUBJECT in entry.details["name"]
    assert made["access_token"] not in str(entry.details)


async def test_the_stock_client_exchanges_by_itself(ci: Ci) -> None:
    """Its own requests, of the class that `OpenAI(workload_identity=...)` uses."""
    provider: Any = {"token_type": "jwt", "get_token": ci.token}
    identity: Any = {"identity_provider_id": ci.provider_id, "service_account_id": ci.account_id}
    auth = WorkloadIdentityAuth(workload_identity=identity | {"provider": provider})
    sent: list[Any] = []

    class Client:
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def post(self, url: str, json: Any, timeout: float) -> None:
            sent.append(json)
            raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openai.auth._workload.DefaultHttpx2Client", lambda **_: Client())
        with pytest.raises(InterruptedError):
            auth.get_token()
    answer = await ci.admin.post("/v1/oauth/token", json=sent[0], headers={"authorization": ""})
    handled = auth._handle_token_response(answer)  # type: ignore[arg-type]
    assert await ci.is_valid(handled["access_token"])
    refused = await ci.admin.post("/v1/oauth/token", json=sent[0], headers={"authorization": ""})
    with pytest.raises(openai.OpenAIError):
        auth._handle_token_response(refused)  # type: ignore[arg-type]


GENERIC = "The subject token is not accepted for this identity provider and service account."
Forge = Callable[[OpenIdProvider, dict[str, Any]], str]


@pytest.mark.parametrize(
    "forge",
    [
        unsigned,
        signed_by_client_secret,
        signed_with_public_key,
        signed_by_another,
        lambda issuer, claims: signed(issuer.key, claims)[:-4] + "AAAA",
        lambda issuer, claims: "no token",
        lambda issuer, claims: "a" * 16_384,
    ],
    ids=["none", "shared secret", "public key as secret", "another key", "signature", "text", "long"],
)
async def test_what_the_issuer_has_not_signed_learns_nothing(ci: Ci, forge: Forge) -> None:
    answer = await ci.exchange(forge(ci.issuer, ci.claims()))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_grant")
    assert answer.json()["error"]["message"] == GENERIC


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "https://other.example"}, "audience"),
        ({"aud": None}, "audience"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "expired"),
        ({"exp": "later"}, "exp is not a time"),
        ({"exp": float("nan")}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"nbf": float("-inf")}, "nbf is not a time"),
        ({"exp": 1 << 40}, "longer than a day"),
        ({"nbf": 1 << 40}, "not valid yet"),
        ({"sub": "repo:acme/app-evil:x"}, "no rule"),
        ({"sub": "REPO:acme/app:x"}, "no rule"),
        ({"repository": None}, "no rule"),
    ],
)
async def test_what_a_token_says_wrongly(ci: Ci, changed: dict[str, Any], reason: str) -> None:
    answer = await ci.exchange(ci.token(**changed))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "subject_token")
    assert reason in answer.json()["error"]["message"]
    assert await ci.accounts.keys.list(ci.tenant_id, service_account_id=ci.account_id) == []


async def test_the_audience_may_be_one_of_several(ci: Ci) -> None:
    assert (await ci.exchange(ci.token(aud=["x", AUDIENCE]))).status_code == 200


async def test_a_token_is_exchanged_once_unless_the_platform_reuses_it(ci: Ci) -> None:
    token = ci.token()
    assert (await ci.exchange(token)).status_code == 200
    again = await ci.exchange(token)
    assert (again.status_code, "before" in again.json()["error"]["message"]) == (400, True)
    await ci.set(single_use=False)
    assert (await ci.exchange(token)).status_code == 200


async def test_a_deleted_service_account_gets_no_key(ci: Ci) -> None:
    await ci.accounts.service_accounts.delete(ci.tenant_id, ci.project_id, ci.account_id, OPERATOR)
    answer = await ci.exchange(ci.token())
    assert (answer.status_code, "no longer active" in answer.text) == (400, True)


async def test_wrong_ids_are_answered_like_a_forged_token(ci: Ci) -> None:
    other = await ci.accounts.tenants.create_tenant("other")
    theirs = await ci.accounts.workload_identities.create_provider(
        other.id, {"name": "x", "issuer": "https://x.example", "audience": "x"}, OPERATOR
    )
    for changed in ({"identity_provider_id": "wip_0"}, {"identity_provider_id": ci.rule_id}):
        assert (await ci.exchange(ci.token(), **changed)).json()["error"]["message"] == GENERIC
    unreachable = await ci.exchange(ci.token(), identity_provider_id=theirs.id)
    assert unreachable.status_code == 503
    assert (await ci.exchange(ci.token(), service_account_id="svc_acct_0")).status_code == 400


async def test_keys_rotate_and_are_cached(ci: Ci) -> None:
    for _ in range(3):
        assert (await ci.exchange(ci.token())).status_code == 200
    assert ci.issuer.asked == ["configuration", "keys"]
    ci.issuer.key = new_key("two")
    assert (await ci.exchange(ci.token())).status_code == 200
    assert ci.issuer.asked.count("keys") == 2
    ci.issuer.is_down = True
    assert (await ci.exchange(ci.token())).status_code == 200, "cached"


async def test_forged_tokens_do_not_flood_the_issuer(ci: Ci, monkeypatch: pytest.MonkeyPatch) -> None:
    await ci.exchange(ci.token())
    monkeypatch.setattr(published_keys, "ASK_AGAIN_S", 30.0)
    for _ in range(5):
        await ci.exchange(signed_by_another(ci.issuer, ci.claims()))
    assert ci.issuer.asked.count("keys") == 1


async def test_keys_end_with_their_rule_and_their_provider(ci: Ci) -> None:
    path = f"{PROVIDERS}/{ci.provider_id}"
    first = (await ci.exchange(ci.token())).json()["access_token"]
    assert await ci.is_valid(first)
    rule = f"{path}/federation_rules/{ci.rule_id}"
    assert (await ci.admin.post(rule, json={"enabled": False})).json()["enabled"] is False

    async def refused() -> bool:
        return not await ci.is_valid(first)

    await eventually(refused)
    assert "no rule" in (await ci.exchange(ci.token())).text
    restricted = {"type": "restricted", "scopes": ["models.read"]}
    await ci.admin.post(rule, json={"enabled": True, "permissions": restricted})
    second = (await ci.exchange(ci.token())).json()
    assert second["scope"] == "models.read"
    first = second["access_token"]
    assert (await ci.admin.delete(path)).status_code == 200
    await eventually(refused)
    assert (await ci.exchange(ci.token())).json()["error"]["message"] == GENERIC


async def test_uploaded_keys_and_bodies_are_judged(ci: Ci) -> None:
    public = {"keys": [ci.issuer.key.as_dict(private=False)]}
    await ci.set(verification={"type": "uploaded_jwks", "jwks": public})
    assert (await ci.exchange(ci.token())).status_code == 200
    assert ci.issuer.asked == []
    private = {"keys": [ci.issuer.key.as_dict(private=True)]}
    secret = {"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}
    for verification in (
        {"type": "uploaded_jwks", "jwks": one} for one in (private, secret, {}, {"keys": []})
    ):
        answer = await ci.admin.post(f"{PROVIDERS}/{ci.provider_id}", json={"verification": verification})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "verification.jwks")
    for field, value in (("issuer", "ftp://x"), ("audience", " "), ("token_seconds", 59), ("name", "")):
        answer = await ci.admin.post(f"{PROVIDERS}/{ci.provider_id}", json={field: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text


async def test_the_addresses_of_issuers_are_checked(ci: Ci) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    for keys, url in (
        (PublishedKeys(resolve=resolve), "https://issuer.example"),
        (PublishedKeys(), ci.issuer.issuer),
    ):
        with pytest.raises(published_keys.IssuerUnavailable):
            await keys.of(url, None)
        with pytest.raises(EndpointUnreachable):
            await keys._get(url)
    assert ci.issuer.asked == []


def test_conditions() -> None:
    claims = {"sub": "a:b", "n": 1, "groups": ["x", "y"], "ok": True, "nested": {"a": 1}}
    for matchers, holds in (
        ({"sub": "a:b"}, True),
        ({"sub": "a:*"}, True),
        ({"sub": "b:*"}, False),
        ({"groups": "y"}, True),
        ({"groups": "z"}, False),
        ({"n": 1, "ok": True}, True),
        ({"n": True}, False),
        ({"ok": 1}, False),
        ({"nested": "*x"}, False),
        ({"absent": "x*"}, False),
        ({}, False),
    ):
        assert claims_match(matchers, claims) is holds, matchers
    for matchers in (
        {},
        {"": "x"},
        {"sub": "*"},
        {"sub": "a*b"},
        {"sub": ""},
        {"sub": [1]},
        {"sub": "a\u202e"},
    ):
        with pytest.raises(ValueError, match="attribute_matchers"):
            check_matchers(matchers)
    with pytest.raises(ValueError, match="keys"):
        read_keys({"keys": [1]})
