"""The examples of docs/api.md run as they stand."""

from __future__ import annotations

import re
import time
from base64 import b64decode
from pathlib import Path

import pyarrow.parquet
import pytest

from billing.notifications import signing
from billing.rates import Rate
from engine.protocol import Usage
from tests.api.file_server import file_server
from tests.api.organization.site import serving_accounts, stock_client
from tests.support.booked import request, write
from tests.support.weights import CONFIG, safetensors_file
from tokenization.codec import TextCodec

PAGE = Path(__file__).resolve().parents[2] / "docs/api.md"


def example(heading: str) -> str:
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None, f"{heading} has no example"
    return found[1]


def test_files_and_uploads(
    codec: TextCodec, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("adapter_model.safetensors").write_bytes(safetensors_file(20_000_000))
    Path("adapter_config.json").write_bytes(CONFIG)
    with file_server(codec, database_url, tmp_path / "objects") as server:
        names = {"client": server.client()}
        exec(example("Files and uploads"), names)
        assert names["upload"].status == "completed"
        assert len(server.client().files.list().data) == 3


def test_the_account(codec: TextCodec, database_url: str, redis_url: str) -> None:
    with serving_accounts(codec, database_url, redis_url) as site:
        ours = site.party("ours")
        with stock_client(site, ours.admin_key) as client:
            names = {"client": client}
            exec(example("The account"), names)
        assert site.refused(names["key"]["value"]) is False
        assert len(names["limits"]) == 3


def test_usage(
    codec: TextCodec, database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving_accounts(codec, database_url, redis_url) as site:
        ours = site.party("ours")
        rate = Rate("prc_1", 3_000_000, 1_000_000, 5_000_000)
        event = request(
            ours.tenant_id, time.time() - 60, usage=Usage(1000, 400, 100), rate=rate, adapter_id="adp_a"
        )
        site.do(write(site.database, [event]))
        with stock_client(site, ours.admin_key) as client:
            names = {"client": client, "answer_id": event.request_id}
            exec(example("Usage"), names)
    assert names["requests"] == 1
    assert names["items"]["sapling, output_tokens"] == 500
    assert names["receipt"]["cost_micro_usd"] == sum(names["items"].values()) == 2700
    assert pyarrow.parquet.read_table("usage.parquet")["cost_micro_usd"].to_pylist() == [2700]


def test_webhooks_and_alerts(codec: TextCodec, database_url: str, redis_url: str) -> None:
    with serving_accounts(codec, database_url, redis_url) as site:
        ours = site.party("ours")
        with stock_client(site, ours.admin_key) as client:
            names = {"client": client}
            exec(example("Webhooks and alerts"), names)
            body = b'{"id": "evt_1", "type": "spend.alert", "created_at": 1, "data": {}}'
            signed = signing.headers("evt_1", int(time.time()), body, [b64decode(names["secret"][6:])])
            assert names["handle"](body, signed) == "spend.alert"
            assert names["newer"].signing_secret != names["secret"]
            assert names["deliveries"] == []
            assert len(list(client.admin.organization.spend_alerts.list())) == 2
