"""Serves the uploads of an adapter's files: in resumable parts from the page's script, or at once from its
form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.catalogue import AdapterWithVersion
from adapters.files.models import UploadPart
from adapters.model_names import check_new_name
from adapters.submission import DTYPES, Calibration, Caller, Dtype, Submission, SubmittedVersion
from admin.adapters.upload_fields import OPTIONAL, PURPOSES, UploadField, upload_field_of
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.forms import FormWithFiles, pieces_of, read_body
from admin.web.principals import TenantUser

PART_BYTES = 8 * 1024 * 1024
MAX_JSON_BYTES = 1024 * 1024
"""Part ids of the largest file."""
KEEP_FILES_S = 24 * 3600
"""An adapter has copies of its own: what is uploaded here is only on its way there."""
_NAME_RULE = "Use 1 to 64 lowercase letters, digits, dots, underscores or hyphens."

T = TypeVar("T")
Id = Annotated[str, Meta(min_length=1, max_length=100)]


class NewUpload(Struct, frozen=True, forbid_unknown_fields=True):
    slot: UploadField
    filename: Annotated[str, Meta(min_length=1, max_length=255)]
    size: Annotated[int, Meta(ge=1, le=2**53)]


class Parts(Struct, frozen=True, forbid_unknown_fields=True):
    part_ids: Annotated[list[Id], Meta(min_length=1, max_length=10_000)]


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    """What the page asks to be made of the files."""

    weights: Id
    config: Id
    signature: Id | None = None
    calibration: Id | None = None
    name: str = ""
    """Of a new adapter."""
    base: str = ""
    """Of a new adapter; empty: the default base."""
    dtype: Dtype = "auto"
    activate: bool = True


class FieldError(Exception):
    """The page's own fields."""

    def __init__(self, slot: str, message: str) -> None:
        super().__init__(message)
        self.slot = slot
        self.message = message


class UploadRoutes:
    """Below `/adapters`. Paths with a word where others have an id come first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._files, self._uploads = services.files, services.uploads
        self._services = services.adapters
        self._accounts = services.accounts
        self._base_digest = services.base_digest
        self._error_mapping = services.error_mapping
        self._expected_errors: tuple[type[Exception], ...] = (FieldError, *services.error_mapping.known)

    def routes(self) -> list[Route]:
        view, script_action = self._console.view, self._console.script_action
        sent = self._console.file_action(self.sent, "adapters.write", max_files=len(PURPOSES))
        upload = "/adapters/uploads/{upload}"
        return [
            Route("/adapters/uploads", script_action(self.begin, members_alone=True), methods=["POST"]),
            Route(upload, view(self.state, "adapters.write"), methods=["GET"]),
            Route(f"{upload}/parts", script_action(self.add_part), methods=["POST"]),
            Route(f"{upload}/complete", script_action(self.complete), methods=["POST"]),
            Route(f"{upload}/cancel", script_action(self.cancel), methods=["POST"]),
            Route("/adapters/new", view(self.form, "adapters.write"), methods=["GET"]),
            Route("/adapters/new", sent, methods=["POST"]),
            Route("/adapters/submit", script_action(self.submit, members_alone=True), methods=["POST"]),
            Route("/adapters/{adapter}/versions/new", view(self.form, "adapters.write"), methods=["GET"]),
            Route("/adapters/{adapter}/versions/new", sent, methods=["POST"]),
            Route(
                "/adapters/{adapter}/submit", script_action(self.submit, members_alone=True), methods=["POST"]
            ),
        ]

    # In parts ---------------------------------------------------------------------------------------------

    async def begin(self, request: Request, principal: TenantUser) -> Response:
        asked = await _read(request, NewUpload)
        state = await self._uploads.create(
            principal.tenant_id,
            principal.account.user_id,
            PURPOSES[asked.slot],
            asked.filename,
            "application/octet-stream",
            asked.size,
            KEEP_FILES_S,
            max_bytes=principal.account.plan.max_file_bytes,
            by=principal.acting(request),
        )
        return JSONResponse({"id": state.upload.id, "part_bytes": PART_BYTES}, status_code=201)

    async def state(self, request: Request, principal: TenantUser) -> Response:
        state = await self._uploads.get(principal.tenant_id, request.path_params["upload"])
        return JSONResponse(
            {
                "id": state.upload.id,
                "status": state.status,
                "file_id": state.file_id,
                "parts": [_part(part) for part in state.parts],
            }
        )

    async def add_part(self, request: Request, principal: TenantUser) -> Response:
        if request.headers.get("content-type") != "application/octet-stream":
            raise HTTPException(415, "Send 'content-type: application/octet-stream'.")
        upload_id = request.path_params["upload"]
        part = await self._uploads.add_part(principal.tenant_id, upload_id, request.stream())
        return JSONResponse(_part(part), status_code=201)

    async def complete(self, request: Request, principal: TenantUser) -> Response:
        asked = await _read(request, Parts)
        upload_id = request.path_params["upload"]
        state = await self._uploads.complete(
            principal.tenant_id, upload_id, asked.part_ids, by=principal.acting(request)
        )
        sha256 = None if state.file is None else state.file.sha256
        return JSONResponse({"file_id": state.file_id, "sha256": sha256})

    async def cancel(self, request: Request, principal: TenantUser) -> Response:
        state = await self._uploads.cancel(
            principal.tenant_id, request.path_params["upload"], by=principal.acting(request)
        )
        return JSONResponse({"status": state.status})

    async def submit(self, request: Request, principal: TenantUser) -> Response:
        order = await _read(request, Order)
        try:
            made = await self._make(request, principal, request.path_params.get("adapter"), order)
        except self._expected_errors as error:
            status, slot, message = self._problem(error)
            return JSONResponse({"error": {"message": message, "slot": slot}}, status_code=status)
        root = request.scope.get("root_path", "")
        return JSONResponse({"location": root + _place(made)}, status_code=201)

    # All at once ------------------------------------------------------------------------------------------

    async def form(self, request: Request, principal: TenantUser) -> Response:
        return await self._form(request, principal, await self._adapter(request, principal), {}, {})

    async def sent(self, request: Request, principal: TenantUser, form: FormWithFiles) -> Response:
        """The page's form without scripts: a request that holds everything."""
        adapter = await self._adapter(request, principal)
        try:
            order = await self._keep(request, principal, form.fields, form.files, is_new=adapter is None)
            made = await self._make(
                request, principal, None if adapter is None else adapter.adapter.id, order
            )
        except self._expected_errors as error:
            status, slot, message = self._problem(error)
            return await self._form(request, principal, adapter, form.fields, {slot: message}, status)
        return self._console.redirect(request, _place(made))

    async def _keep(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        files: Mapping[str, UploadFile],
        *,
        is_new: bool,
    ) -> Order:
        """The files as the tenant's own."""
        name, dtype = fields.get("name", ""), fields.get("dtype", "auto")
        if is_new:
            _check_name(name)
        if dtype not in DTYPES:
            raise FieldError("form", f"Choose one of these precisions: {', '.join(DTYPES)}.")
        kept: dict[str, str] = {}
        for slot, purpose in PURPOSES.items():
            file = files.get(slot)
            if file is None or file.filename is None:
                if slot not in OPTIONAL:
                    raise FieldError(slot, "Choose a file.")
                continue
            try:
                stored = await self._files.create(
                    principal.tenant_id,
                    principal.account.user_id,
                    purpose,
                    file.filename,
                    pieces_of(file),
                    KEEP_FILES_S,
                    max_bytes=principal.account.plan.max_file_bytes,
                    by=principal.acting(request),
                )
            except self._error_mapping.known as error:
                raise FieldError(slot, self._problem(error)[2]) from error
            kept[slot] = stored.id
        return msgspec.convert(
            {
                **kept,
                "name": name,
                "base": fields.get("base", ""),
                "dtype": dtype,
                "activate": "activate" in fields,
            },
            Order,
            strict=True,
        )

    # ------------------------------------------------------------------------------------------------------

    async def _make(
        self, request: Request, principal: TenantUser, adapter_id: str | None, order: Order
    ) -> SubmittedVersion:
        account = principal.account
        caller = Caller(account.tenant_id, account.user_id, account.plan, principal.acting(request))
        submission = Submission(
            file_ids=[order.weights, order.config, *([order.signature] if order.signature else [])],
            activate=order.activate,
            calibration=Calibration(order.calibration, order.dtype),
        )
        if adapter_id is not None:
            shown = await self._services.catalogue.get(principal.tenant_id, adapter_id)
            digest = self._base_digest(shown.adapter.base)
            return await self._services.submission.add_version(
                caller, adapter_id, submission, base_digest=digest
            )
        _check_name(order.name)
        bases = self._services.catalogue.bases
        base = order.base or bases.default
        if base not in bases:
            raise FieldError("form", f"Choose one of these base models: {', '.join(bases)}.")
        return await self._services.submission.create(
            caller, order.name, submission, base=base, base_digest=self._base_digest(base)
        )

    async def _adapter(self, request: Request, principal: TenantUser) -> AdapterWithVersion | None:
        adapter = request.path_params.get("adapter")
        return None if adapter is None else await self._services.catalogue.get(principal.tenant_id, adapter)

    async def _form(
        self,
        request: Request,
        principal: TenantUser,
        adapter: AdapterWithVersion | None,
        fields: Mapping[str, str],
        errors: Mapping[str, str],
        status: int = 200,
    ) -> Response:
        return self._console.render(
            request,
            "adapter_new.html",
            status,
            principal=principal,
            section="adapters",
            bases=list(self._services.catalogue.bases),
            adapter=None if adapter is None else adapter.adapter,
            fields=defaultdict(str, fields),
            activate=not fields or "activate" in fields,
            errors=defaultdict(str, errors),
        )

    def _problem(self, error: Exception) -> tuple[int, str, str]:
        """Status, the field of the page, and what is wrong with it."""
        if isinstance(error, FieldError):
            return 422, error.slot, error.message
        status, envelope = self._error_mapping.describe(error)
        return status, upload_field_of(envelope["error"].get("param")), str(envelope["error"]["message"])


async def _read(request: Request, shape: type[T]) -> T:
    """A small JSON body. Raises `HTTPException`."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "Send 'content-type: application/json'.")
    body = await read_body(request, MAX_JSON_BYTES)
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.DecodeError as error:
        raise HTTPException(400, str(error)) from None


def _check_name(name: str) -> None:
    try:
        check_new_name(name)
    except ValueError:
        raise FieldError("name", _NAME_RULE) from None


def _place(made: SubmittedVersion) -> str:
    return f"/adapters/{made.adapter.id}"


def _part(part: UploadPart) -> dict[str, Any]:
    return {"id": part.id, "size": part.size, "sha256": part.sha256}
