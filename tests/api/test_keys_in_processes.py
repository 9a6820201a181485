"""Keys before two real API processes: from where they may be used, how soon both hear of changes, and that no
secret ever reaches a log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import redis.asyncio

from db.session import Database
from tenants.actors import OPERATOR
from tenants.key_restrictions import KeyRestrictions
from tenants.service import account_services
from tests.api.test_process import SECRET, Processes, processes  # noqa: F401  the fixture
from tests.support.waiting import eventually

PASSWORD = "correct horse battery"


def get(url: str, **options: Any) -> httpx.Response:
    return httpx.get(url, verify=False, trust_env=False, **options)  # without a TLS context: they cost most


def post(url: str, **options: Any) -> httpx.Response:
    return httpx.post(url, verify=False, trust_env=False, **options)


def asked(url: str, key: str, forwarded: str | None = None, path: str = "/v1/models") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} | ({"x-forwarded-for": forwarded} if forwarded else {})
    return get(url + path, headers=headers)


def accepted(url: str, token: str) -> httpx.Response:
    return post(f"{url}/v1/organization/invites/accept", json={"token": token, "password": PASSWORD})


def told(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"]


async def test_addresses_revocation_and_secrets_in_two_processes(
    processes: Processes,  # noqa: F811
    database: Database,
    redis_client: redis.asyncio.Redis,
) -> None:
    accounts = account_services(database, redis_client, SECRET)
    tenant = await accounts.tenants.create_tenant("acme")
    admin = await accounts.keys.create(tenant.id, "admin", OPERATOR, kind="admin")
    near = KeyRestrictions(networks=("203.0.113.0/24",))
    bound = await accounts.keys.create(tenant.id, "office", OPERATOR, restrictions=near)
    keys = [await accounts.keys.create(tenant.id, str(n), OPERATOR) for n in range(3)]
    port = processes.port
    processes.start(
        "api.main",
        ROOTSTOCK_API_LOG_LEVEL="debug",
        ROOTSTOCK_API_LOG_FORMAT="json",
        ROOTSTOCK_API_FORWARDED_ALLOW_IPS="192.0.2.0/24, 127.0.0.1",
    )
    # The second has the default: it believes no peer's headers.
    processes.start(
        "api.main",
        ROOTSTOCK_API_LOG_LEVEL="debug",
        ROOTSTOCK_API_PORT="0",
        ROOTSTOCK_API_NAME="api-1",
    )
    processes.wait_for("/livez", 200)
    trusting = f"http://127.0.0.1:{port}"
    distrusting = await _other_address(processes, port)

    # From where a key is used ---------------------------------------------------------------------------
    assert asked(trusting, bound.plaintext, "203.0.113.9").status_code == 200
    for url, forwarded, address in (
        (trusting, None, "127.0.0.1"),
        (
            trusting,
            "203.0.113.9, 198.51.100.1",
            "198.51.100.1",
        ),  # what the client wrote itself is to the left
        (trusting, "203.0.113.9, 203.0.114.1", "203.0.114.1"),
        (distrusting, "203.0.113.9", "127.0.0.1"),
        (distrusting, None, "127.0.0.1"),
    ):
        status, message = told(asked(url, bound.plaintext, forwarded))
        assert (status, address in message) == (403, True), message

    # How soon both hear ---------------------------------------------------------------------------------
    waits = []
    for key in keys:
        assert {asked(url, key.plaintext).status_code for url in (trusting, distrusting)} == {200}
        await accounts.keys.revoke(tenant.id, key.id, OPERATOR)
        waits.append(await eventually(refused_by(key.plaintext, trusting, distrusting), 20))
    assert min(waits) < 1.0, f"best of {waits} s; a cached key lives 30 s"

    # What was made over HTTP, and what of it the logs say ---------------------------------------------------
    secrets = await _make_secrets(trusting, admin.plaintext)
    secrets |= {"an admin's": admin.plaintext, "one of networks": bound.plaintext}
    for secret in secrets.values():
        # Mistyped, in the address, and as what it is not.
        for url in (trusting, distrusting):
            asked(url, secret[:-1])
            asked(url, secret, path=f"/v1/models/{secret}")
            accepted(url, secret + "0")
    # The processes' own log, at its most talkative; a line is written when its answer is out.
    await eventually(lambda: processes.log.count("invites/accept") >= 2 * len(secrets))
    log = processes.log
    shown = {what for what, secret in secrets.items() if _tail(secret) in log}
    assert shown == set()
    assert PASSWORD not in log


def refused_by(key: str, *urls: str) -> Callable[[], bool]:
    return lambda: all(asked(url, key).status_code == 401 for url in urls)


async def _make_secrets(url: str, admin_key: str) -> dict[str, str]:
    """Every kind of secret that an answer shows once, by what made it."""
    headers = {"authorization": f"Bearer {admin_key}"}

    def make(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = post(f"{url}/v1/organization{path}", json=body, headers=headers)
        assert answer.status_code in (200, 201), answer.text
        made: dict[str, Any] = answer.json()
        return made

    admin = make("/admin_api_keys", {"name": "second"})
    project = make("/projects", {"name": "web"})["id"]
    account = make(f"/projects/{project}/service_accounts", {"name": "bot"})
    key = make(f"/projects/{project}/api_keys", {"name": "ci"})
    rotated = make(f"/projects/{project}/api_keys/{key['id']}/rotate", {})
    invite = make("/invites", {"email": "bob@example.com", "role": "reader"})
    found = {
        "admin key": admin,
        "service account": account,
        "key": key,
        "rotation": rotated,
        "invite": invite,
    }
    return {what: _secret_of(answer) for what, answer in found.items()}


def _secret_of(answer: dict[str, Any]) -> str:
    [secret] = re.findall(r"rs_[a-z]+_[0-9A-Za-z]{49}", str(answer))
    return str(secret)


def _tail(secret: str) -> str:
    return secret[-40:-1]


async def _other_address(processes: Processes, port: int) -> str:  # noqa: F811
    """Where the process that took a free port listens."""
    found: list[str] = []

    def listening() -> bool:
        every = re.findall(r"http://127\.0\.0\.1:\d+", processes.log)
        found[:] = [one for one in every if not one.endswith(f":{port}")]
        return bool(found)

    await eventually(listening, 60)
    return found[0]
