"""A tenant is deleted by command; its certificate is exported and verified without the service."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from db.session import Database
from retention.certifying import Certifier
from retention.signing import CertificateSigner
from retention.sweep import RetentionSweep
from tenants.key_secrets import KeySecrets
from tenants.retention.classes import DEFAULT_BOUNDS
from tests.cli.test_accounts import SECRET, Run, run, table

__all__ = ["run"]


async def certify() -> None:
    """As the workers do."""
    database = Database(os.environ["ROOTSTOCK_DB_URL"])
    await RetentionSweep(database, DEFAULT_BOUNDS).run_expired()
    signer = CertificateSigner(KeySecrets(SECRET))
    assert await Certifier(database, signer, DEFAULT_BOUNDS).run() == 1
    await database.close()


def test_a_deleted_tenant_leaves_a_certificate_that_is_verified_offline(run: Run, tmp_path: Path) -> None:
    run("tenant", "create", "acme")
    run("user", "create", "acme", "ann@example.com", "--role", "owner", typed="correct horse battery\n")
    code, _, error = run("tenant", "delete", "acme", "--confirm", "acme")
    assert (code, "acme is active: disable it first" in error) == (1, True)
    run("tenant", "disable", "acme")
    code, _, error = run("tenant", "delete", "acme", "--confirm", "acne")
    assert (code, "nothing is deleted" in error) == (2, True)
    code, printed, _ = run("tenant", "delete", "acme", "--confirm", "acme")
    assert (code, "has begun" in printed) == (0, True)
    tenant = printed.partition("(")[2].partition(")")[0]
    code, _, error = run("tenant", "enable", tenant)
    assert (code, "has begun already" in error) == (1, True)
    asyncio.run(certify())

    out = tmp_path / "evidence"
    assert run("evidence", "--out", str(out))[0] == 0
    exported = out / "deletion-certificates.json"
    [row] = json.loads(exported.read_text())
    assert (row["organization_id"], row["cause"], "ann@" in exported.read_text()) == (
        tenant,
        "organization",
        False,
    )
    [key] = json.loads((out / "certificate-keys.json").read_text())
    code, printed, _ = run("evidence", "verify", str(exported), "--key", key["public_key"])
    assert (code, table(printed)[0][2]) == (0, row["certificate_id"])
    one = tmp_path / "one.json"
    one.write_text(row["certificate"])
    assert "or pass --key" in run("evidence", "verify", str(one))[1]
    one.write_text(row["certificate"].replace(tenant, "someone"))
    code, _, error = run("evidence", "verify", str(one))
    assert (code, "the statement was changed" in error) == (1, True)
    for arguments, expected, why in (
        ((str(exported), "--key", "00" * 32), 1, "is signed with the key"),
        ((str(exported), "--key", "nonsense"), 2, "is not hexadecimal"),
        ((str(tmp_path / "none"),), 1, "No such file"),
        ((), 2, "Missing argument"),
    ):
        code, printed, error = run("evidence", "verify", *arguments)
        assert (code, why in error + printed) == (expected, True)
    assert run("evidence")[0] == 2
