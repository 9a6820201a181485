"""Serves the form that imports an adapter, or a version of one, from a model hub or an S3 bucket."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.catalogue import AdapterWithVersion
from adapters.errors import InvalidAdapter
from adapters.imports.sources import (
    DEFAULT_REGION,
    DEFAULT_REVISION,
    BucketSource,
    HubSource,
    Source,
)
from adapters.model_names import check_new_name
from adapters.submission import Caller, Submission, SubmittedVersion
from admin import formatting
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser

SECRETS = ("token", "access_key_id", "secret_access_key", "session_token")
"""Fields that are never shown again."""
FIELDS = ("name", "base", "repository", "revision", "endpoint", "url", "region", *SECRETS)
_PARAMETERS = {"base_model": "base"}
_NAME_RULE = "Use 1 to 64 lowercase letters, digits, dots, underscores or hyphens."


class ImportRoutes:
    """Below `/adapters`. Paths with a word where others have an id come first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._services = services.adapters
        self._base_digest = services.base_digest
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        form = self._console.view(self.form, "adapters.write")
        sent = self._console.action(self.sent, "adapters.write", members_alone=True)
        return [
            Route(path, endpoint, methods=[method])
            for path in ("/adapters/import", "/adapters/{adapter}/versions/import")
            for method, endpoint in (("GET", form), ("POST", sent))
        ]

    async def form(self, request: Request, principal: TenantUser) -> Response:
        adapter = await self._adapter(request, principal)
        kind = "s3" if request.query_params.get("type") == "s3" else "hub"
        fields = {"type": kind, "revision": DEFAULT_REVISION, "region": DEFAULT_REGION, "activate": "on"}
        return self._render(request, principal, adapter, fields, form_errors.NO_ERRORS)

    async def sent(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        adapter = await self._adapter(request, principal)
        try:
            made = await self._make(request, principal, adapter, form)
        except InvalidAdapter as refused:
            named = form_errors.FieldError(
                refused.field.removeprefix("source."), formatting.sentence(refused.reason)
            )
            status, errors = form_errors.explain(named, FIELDS, self._error_mapping)
            return self._render(request, principal, adapter, form, errors, status)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, FIELDS, self._error_mapping, _PARAMETERS)
            return self._render(request, principal, adapter, form, errors, status)
        return self._console.redirect(request, f"/adapters/{made.adapter.id}")

    async def _make(
        self,
        request: Request,
        principal: TenantUser,
        adapter: AdapterWithVersion | None,
        form: Mapping[str, str],
    ) -> SubmittedVersion:
        account = principal.account
        caller = Caller(account.tenant_id, account.user_id, account.plan, principal.acting(request))
        submission = Submission(source=_source(form), activate="activate" in form)
        if adapter is not None:
            row = adapter.adapter
            digest = self._base_digest(row.base)
            return await self._services.submission.add_version(caller, row.id, submission, base_digest=digest)
        name = form.get("name", "")
        try:
            check_new_name(name)
        except ValueError:
            raise form_errors.FieldError("name", _NAME_RULE) from None
        bases = self._services.catalogue.bases
        base = form.get("base") or bases.default
        if base not in bases:
            raise form_errors.FieldError("base", f"Choose one of these base models: {', '.join(bases)}.")
        digest = self._base_digest(base)
        return await self._services.submission.create(caller, name, submission, base=base, base_digest=digest)

    async def _adapter(self, request: Request, principal: TenantUser) -> AdapterWithVersion | None:
        adapter = request.path_params.get("adapter")
        return None if adapter is None else await self._services.catalogue.get(principal.tenant_id, adapter)

    def _render(
        self,
        request: Request,
        principal: TenantUser,
        adapter: AdapterWithVersion | None,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        return self._console.render(
            request,
            "adapter_import.html",
            status,
            principal=principal,
            section="adapters",
            base_options=[(name, name) for name in self._services.catalogue.bases],
            adapter=None if adapter is None else adapter.adapter,
            fields={name: value for name, value in fields.items() if name not in SECRETS},
            errors=errors,
        )


def _source(form: Mapping[str, str]) -> Source:
    """Raises InvalidAdapter naming the field."""
    given = {name: form.get(name, "").strip() or None for name in FIELDS}
    if form.get("type") == "s3":
        return BucketSource(
            given["url"] or "",
            given["region"] or DEFAULT_REGION,
            given["endpoint"],
            given["access_key_id"],
            given["secret_access_key"],
            given["session_token"],
        )
    return HubSource(
        given["repository"] or "",
        given["revision"] or DEFAULT_REVISION,
        given["endpoint"],
        given["token"],
    )
