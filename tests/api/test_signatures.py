"""Signatures over the API: the platform's for owners and sharers; the organization's on uploads."""

from __future__ import annotations

import json
from typing import Any

from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from engine.signing import bundle, folder
from engine.signing.keys import SigningKey, TrustedKeys
from engine.signing.statement import SIGNATURE_FILE, encode_statement
from tests.api.everything import Everything
from tests.support.onboarding import BASE_DIGEST, SAPLING, SIGNING_KEY

PIRATE = {name: (SAPLING / "adapters" / "pirate" / name).read_bytes() for name in (WEIGHTS_FILE, CONFIG_FILE)}
TENANTS_KEY, ANOTHER = SigningKey.make(), SigningKey.make()


def signature(files: dict[str, bytes], key: SigningKey = TENANTS_KEY) -> bytes:
    digests = {name: folder.sha256(content) for name, content in files.items()}
    return bundle.sign(key, encode_statement("pirate", digests))


class Uploader:
    """Uploads adapters for one tenant, each under a name of its own."""

    def __init__(self, both: Everything) -> None:
        self.world = both
        self.num = 0

    async def __call__(self, signed: bytes | None, files: dict[str, bytes] = PIRATE) -> tuple[int, Any]:
        self.num += 1
        client = self.world.ours.inference
        given = files if signed is None else {**files, SIGNATURE_FILE: signed}
        ids = []
        for name, content in given.items():
            form = {"files": {"file": (name, content)}, "data": {"purpose": "adapter"}}
            answer = await client.post("/v1/files", **form)  # type: ignore[arg-type]
            assert answer.status_code == 200, answer.text
            ids.append(answer.json()["id"])
        body = {"name": f"upload-{self.num}", "base_model": "sapling", "file_ids": ids}
        answer = await client.post("/v1/adapters", json=body)
        return answer.status_code, answer.json()


async def test_the_platforms_signature_is_shown_to_owners_and_sharers_and_its_key_to_everybody(
    both: Everything,
) -> None:
    ours, keys = both.ours, TrustedKeys([SIGNING_KEY.public])
    path = f"/v1/adapters/{ours.ids['adapter']}/versions/1"
    version = (await ours.inference.get(path)).json()
    assert version["signature"]["status"] == "signed"
    assert version["signature"]["signed_at"] > 0
    shown = (await ours.inference.get(f"{path}/signature")).content
    verified = bundle.verify_own(shown, keys)
    folder.check_packed(verified, version["digest"])
    folder.check_content(verified, folder.BASE, folder.base_document(BASE_DIGEST))
    of_share = await ours.inference.get(f"/v1/shares/{ours.ids['received_share_id']}/signature")
    assert of_share.status_code == 200
    bundle.verify_own(of_share.content, keys)
    offered = await ours.inference.get(f"/v1/shares/{both.theirs.ids['received_share_id']}/signature")
    assert offered.status_code == 404
    unsigned = await ours.inference.get(f"/v1/adapters/{ours.ids['adapter']}/versions/2/signature")
    assert (unsigned.status_code, "is not signed yet" in unsigned.text) == (404, True)

    anonymous = ours.inference
    del anonymous.headers["authorization"]
    (listed,) = (await anonymous.get("/.well-known/adapter-signing-keys.json")).json()["data"]
    assert (listed["key_id"], listed["current"]) == (SIGNING_KEY.public.id, True)
    pem = await anonymous.get("/.well-known/adapter-signing-key.pem")
    assert pem.text == listed["public_key"] == SIGNING_KEY.public.pem


async def test_signed_uploads_are_verified_and_can_be_required(both: Everything) -> None:
    admin, upload = both.ours.admin, Uploader(both)
    status, unknown = await upload(signature(PIRATE))
    assert (status, unknown["version"]["signature"]["uploader_key"]) == (201, None), "no key is registered"
    body = {"name": "release", "public_key": TENANTS_KEY.public.pem}
    key = (await admin.post("/v1/organization/signing_keys", json=body)).json()
    again = await admin.post("/v1/organization/signing_keys", json=body)
    assert (again.status_code, again.json()["error"]["param"]) == (409, "public_key")
    wrong = await admin.post("/v1/organization/signing_keys", json={"name": "x", "public_key": "x"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "public_key")

    readme = {**PIRATE, "README.md": b"signed, and not uploaded"}
    status, made = await upload(signature(readme))
    assert status == 201
    assert made["version"]["signature"]["uploader_key"] == {
        "id": key["id"],
        "name": "release",
        "key_id": TENANTS_KEY.public.id,
    }
    assert [file["filename"] for file in made["version"]["files"]] == [
        CONFIG_FILE,
        WEIGHTS_FILE,
        SIGNATURE_FILE,
    ]
    assert (await upload(signature(PIRATE, ANOTHER)))[0] == 201, "another's signature counts as none"
    assert (await upload(None))[0] == 201
    await assert_a_registered_keys_signature_must_hold(upload)

    setting = {"signed_adapters_only": True}
    assert (await admin.post("/v1/organization/adapter_signing", json=setting)).json()["signed_adapters_only"]
    assert (await admin.get("/v1/organization/adapter_signing")).json()["signed_adapters_only"]
    refusals = {
        "the file is missing": None,
        "is none that is accepted": signature(PIRATE, ANOTHER),
        "it is not a Sigstore bundle": b"{}",
    }
    for reason, signed in refusals.items():
        status, refused = await upload(signed)
        assert (status, refused["error"]["param"]) == (422, SIGNATURE_FILE), reason
        assert reason in refused["error"]["message"]
    assert (await upload(signature(PIRATE)))[0] == 201
    await admin.delete(f"/v1/organization/signing_keys/{key['id']}")
    assert (await upload(signature(PIRATE)))[0] == 422


async def assert_a_registered_keys_signature_must_hold(upload: Uploader) -> None:
    config = json.dumps(json.loads(PIRATE[CONFIG_FILE]), indent=3).encode()
    status, refused = await upload(signature(PIRATE), {**PIRATE, CONFIG_FILE: config})
    assert (status, refused["error"]["param"]) == (422, CONFIG_FILE)
    assert "the signature says" in refused["error"]["message"]
    status, refused = await upload(signature({CONFIG_FILE: PIRATE[CONFIG_FILE]}))
    assert (status, refused["error"]["param"]) == (422, WEIGHTS_FILE)
    assert "does not cover it" in refused["error"]["message"]
    tampered = json.loads(signature(PIRATE))
    tampered["dsseEnvelope"]["signatures"][0]["sig"] = "AAAA"
    status, refused = await upload(json.dumps(tampered).encode())
    assert (status, refused["error"]["param"]) == (422, SIGNATURE_FILE)
    assert "dsseEnvelope.signatures[0].sig" in refused["error"]["message"]
