"""Serves the form that creates a batch from an uploaded file."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.files.models import Purpose, StoredFile
from admin.navigation import BATCHES
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.form_errors import NO_ERRORS, FieldError, FormErrors, expected_errors, explain
from admin.web.forms import FormWithFiles, pieces_of
from admin.web.principals import TenantUser
from batches.models import Batch
from batches.service import MAX_INPUT_BYTES, NewBatch
from tenants.caller_contexts import RUN_REQUESTS

HERE = "/batches/new"
KEEP_FILE_S = 24 * 3600
"""A batch has a copy of its own of what is uploaded here."""
_FIELDS = ("file", "endpoint")
_PARAMETERS = {"input_file_id": "file", "filename": "file"}
"""Parameters of the API, by the form's field that they come from."""


class BatchCreationRoutes:
    """`/batches/new`. Comes before paths with a batch's id."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._batches = services.batches
        self._endpoints = services.batch_endpoints
        self._files = services.files
        self._base = services.adapters.catalogue.bases.default
        self._error_mapping = services.error_mapping
        self._expected_errors = expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        return [
            Route(HERE, self._console.view(self.show, RUN_REQUESTS), methods=["GET"]),
            Route(HERE, self._console.file_action(self.create, RUN_REQUESTS, max_files=1), methods=["POST"]),
        ]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return self._form(request, principal, {}, NO_ERRORS)

    async def create(self, request: Request, principal: TenantUser, form: FormWithFiles) -> Response:
        try:
            batch = await self._create(request, principal, form)
        except self._expected_errors as error:
            status, errors = explain(error, _FIELDS, self._error_mapping, _PARAMETERS)
            return self._form(request, principal, form.fields, errors, status)
        message = "Batch created. Its lines are checked first, then run as there is room."
        return await self._console.redirect_with_message(request, principal, f"/batches/{batch.id}", message)

    async def _create(self, request: Request, principal: TenantUser, form: FormWithFiles) -> Batch:
        """The file as the tenant's own, and a batch of it. Raises FieldError and what the services do."""
        endpoint = form.fields.get("endpoint", "")
        if endpoint not in self._endpoints:
            raise FieldError("endpoint", f"Choose one of these endpoints: {', '.join(self._endpoints)}.")
        file = await self._store(request, principal, form)
        tenant_id, user_id, by = principal.tenant_id, principal.account.user_id, principal.acting(request)
        try:
            return await self._batches.create(tenant_id, user_id, NewBatch(file.id, endpoint), by)
        except self._error_mapping.known:
            await self._files.delete(tenant_id, file.id, by=by)
            raise

    async def _store(self, request: Request, principal: TenantUser, form: FormWithFiles) -> StoredFile:
        file = form.files.get("file")
        if file is None or file.filename is None:
            raise FieldError("file", "Choose a file.")
        return await self._files.create(
            principal.tenant_id,
            principal.account.user_id,
            Purpose.BATCH,
            file.filename,
            pieces_of(file),
            KEEP_FILE_S,
            max_bytes=min(MAX_INPUT_BYTES, principal.account.plan.max_file_bytes),
            by=principal.acting(request),
        )

    def _form(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: FormErrors,
        status: int = 200,
    ) -> Response:
        return self._console.render(
            request,
            "batch_new.html",
            status,
            principal=principal,
            section=BATCHES.id,
            endpoints=[(path, path) for path in self._endpoints],
            endpoint=fields.get("endpoint", ""),
            max_bytes=min(MAX_INPUT_BYTES, principal.account.plan.max_file_bytes),
            example_model=self._base,
            errors=errors,
        )
