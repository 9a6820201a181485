"""Serves signatures of adapters, and the platform's public keys, which need no API key."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from fastapi import Request, Response

from adapters.errors import AdapterNotFound, VersionNotFound
from adapters.sharing.errors import ShareNotFound
from adapters.signing.errors import SignatureNotFound
from api.authentication import READ_ADAPTERS, authenticate
from api.errors import NotServing
from api.openapi.routing import Router, answers, fails_with
from api.services import onboarding_of
from tenants.errors import AccountSuspended

owned = Router(prefix="/v1/adapters", tags=["Adapters"], errors=(AccountSuspended(),))
shared = Router(prefix="/v1/shares", tags=["Shared adapters"], errors=(AccountSuspended(),))
open_router = Router(prefix="/.well-known", tags=["Adapters"])
_SHARE = "shr_01k0000000000000000000000"


class SignatureBundle(TypedDict):
    """A Sigstore bundle: the file `model.sig` of OpenSSF Model Signing."""

    mediaType: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"]
    verificationMaterial: dict[str, Any]
    """Names the platform's public key by the SHA-256 of its PEM."""
    dsseEnvelope: dict[str, Any]
    """The signed in-toto statement: the SHA-256 of each file of the version."""


class PlatformKey(TypedDict):
    """A public key that the platform signs adapters with."""

    key_id: str
    """The SHA-256 of the key in PEM."""
    algorithm: str
    public_key: str
    """In PEM."""
    current: bool
    """Whether new signatures are made with it; the other one is accepted while the key is rotated."""


class PlatformKeys(TypedDict):
    """The platform's public keys, the current one first."""

    object: Literal["list"]
    data: list[PlatformKey]


@owned.get(
    "/{adapter}/versions/{version}/signature", operation_id="retrieveAdapterSignature", response_model=None
)
@answers(SignatureBundle)
@fails_with(AdapterNotFound("support"), VersionNotFound("support", 7), SignatureNotFound("support", 7))
async def retrieve_signature(request: Request, adapter: str, version: int) -> Response:
    """Retrieves the platform's signature over all files of a version: its `model.sig`."""
    caller = await authenticate(request, READ_ADAPTERS)
    return _bundle(await onboarding_of(request).signatures.of_version(caller.tenant_id, adapter, version))


@shared.get("/{received_share_id}/signature", operation_id="retrieveShareSignature", response_model=None)
@answers(SignatureBundle)
@fails_with(ShareNotFound(_SHARE), SignatureNotFound("support", 7))
async def retrieve_share_signature(request: Request, received_share_id: str) -> Response:
    """Retrieves the platform's signature over the version that a shared adapter serves now."""
    caller = await authenticate(request, READ_ADAPTERS)
    return _bundle(await onboarding_of(request).signatures.of_share(caller.tenant_id, received_share_id))


@open_router.get("/adapter-signing-keys.json", operation_id="listPlatformKeys")
@fails_with(NotServing("Files and adapters are not served here."))
async def list_keys(request: Request) -> PlatformKeys:
    """Lists the public keys that signatures of adapters are verified with; none where the platform does not
    sign.
    """
    keys = onboarding_of(request).signatures.keys
    return {
        "object": "list",
        "data": [
            {"key_id": key.id, "algorithm": key.algorithm, "public_key": key.pem, "current": place == 0}
            for place, key in enumerate(keys)
        ],
    }


@open_router.get(
    "/adapter-signing-key.pem",
    operation_id="retrievePlatformKey",
    response_class=Response,
    responses={200: {"content": {"application/x-pem-file": {"schema": {"type": "string"}}}}},
)
@fails_with(NotServing("Signing keys are not served here."))
async def retrieve_key(request: Request) -> Response:
    """Retrieves the current public key in PEM, for `model_signing verify key`."""
    for key in onboarding_of(request).signatures.keys:
        return Response(key.pem, media_type="application/x-pem-file")
    raise NotServing("Signing keys are not served here.")


def _bundle(content: str) -> Response:
    return Response(content, media_type="application/json")
