"""Serves an organization's retention: periods with a preview of what they delete, legal holds,
certificates.
"""

from __future__ import annotations

import json
import re
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import SETTINGS
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of
from retention.certificate_files import certificate_pdf, file_name
from retention.certificates import CAUSES
from retention.service import ClassPeriod, RetentionService
from tenants.retention.classes import DataClass, kept_records
from tenants.retention.errors import DeletionUnconfirmed
from tenants.roles import Right

PATH = f"{SETTINGS.path}/retention"
PAGE = 20
_CERTIFICATE_ID = re.compile(r"delcert_[0-9a-z]{1,40}")
_PDF, _JSON = "application/pdf", "application/json"


class RetentionRoutes:
    """Below `/settings/retention`. Paths with a word where others have a class come first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._retention: RetentionService = services.retention
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        write: Right = "projects.write"
        one = f"{PATH}/certificates/{{certificate}}"
        return [
            Route(PATH, view(self.show, SETTINGS.right), methods=["GET"]),
            Route(f"{PATH}/holds", action(self.place_hold, write), methods=["POST"]),
            Route(f"{PATH}/holds/{{hold}}/lift", action(self.lift_hold, write), methods=["POST"]),
            Route(one, view(self.show_certificate, "audit.read"), methods=["GET"]),
            Route(f"{one}/certificate.json", view(self.certificate_json, "audit.read"), methods=["GET"]),
            Route(f"{one}/certificate.pdf", view(self.certificate_pdf, "audit.read"), methods=["GET"]),
            Route(f"{PATH}/{{data_class}}", view(self.preview, write), methods=["GET"]),
            Route(f"{PATH}/{{data_class}}", action(self.set_days, write), methods=["POST"]),
        ]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._page(request, principal)

    async def preview(self, request: Request, principal: TenantUser) -> Response:
        """Shows what a period would delete, with the form that confirms it."""
        data_class, given = _class_of(request), request.query_params.get("days", "").strip()
        try:
            days = _days_of(given)
            found = await self._retention.preview(principal.tenant_id, data_class, days)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, ("days",), self._error_mapping)
            return await self._page(request, principal, status, errors, {"class": data_class, "days": given})
        [period] = await self._periods(principal, data_class)
        return self._console.render(
            request,
            "retention_change.html",
            principal=principal,
            section=SETTINGS.id,
            period=period,
            preview=found,
            days=days,
        )

    async def set_days(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        data_class, given = _class_of(request), form.get("days", "").strip()
        try:
            period = await self._retention.set(
                principal.tenant_id,
                data_class,
                _days_of(given),
                principal.acting(request),
                confirms_deletions=form.get("confirm_deletions") == "yes",
            )
        except DeletionUnconfirmed:
            target = f"{PATH}/{data_class}?days={_days_of(given) or ''}"
            message = "This period deletes data now: confirm it below."
            return await self._console.redirect_with_message(request, principal, target, message)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, ("days",), self._error_mapping)
            return await self._page(request, principal, status, errors, {"class": data_class, "days": given})
        kept = "until deleted" if period.days is None else f"for {period.days} days"
        message = f"{period.terms.title}: kept {kept}."
        return await self._console.redirect_with_message(request, principal, PATH, message)

    async def place_hold(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        chosen, object_id = form.get("data_class", ""), form.get("object_id", "").strip()
        if chosen == "everything":
            chosen, object_id = "", principal.tenant_id
        try:
            hold = await self._retention.place_hold(
                principal.tenant_id,
                form.get("reason", ""),
                principal.acting(request),
                data_class=DataClass(chosen) if chosen in DataClass.__members__.values() else None,
                object_id=object_id or None,
            )
        except self._expected_errors as error:
            fields = ("reason", "data_class", "object_id")
            status, errors = form_errors.explain(error, fields, self._error_mapping)
            return await self._page(request, principal, status, errors, form)
        message = f"Legal hold {hold.id} placed. Nothing deletes what it covers."
        return await self._console.redirect_with_message(request, principal, PATH, message)

    async def lift_hold(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        hold_id = request.path_params["hold"]
        await self._retention.lift_hold(principal.tenant_id, hold_id, principal.acting(request))
        message = "Legal hold lifted. What is older than its period is deleted within minutes."
        return await self._console.redirect_with_message(request, principal, PATH, message)

    async def show_certificate(self, request: Request, principal: TenantUser) -> Response:
        row = await self._certificate(request, principal)
        statement = row["statement"]
        return self._console.render(
            request,
            "deletion_certificate.html",
            principal=principal,
            section=SETTINGS.id,
            document=row,
            statement=statement,
            cause=CAUSES[statement["cause"]],
        )

    async def certificate_json(self, request: Request, principal: TenantUser) -> Response:
        document = await self._certificate(request, principal)
        return _file(json.dumps(document, indent=1).encode(), _JSON, file_name(document, "json"))

    async def certificate_pdf(self, request: Request, principal: TenantUser) -> Response:
        document = await self._certificate(request, principal)
        return _file(await certificate_pdf(document), _PDF, file_name(document, "pdf"))

    async def _certificate(self, request: Request, principal: TenantUser) -> dict[str, Any]:
        certificate_id = request.path_params["certificate"]
        return (await self._retention.certificate(principal.tenant_id, certificate_id)).document

    async def _periods(self, principal: TenantUser, data_class: DataClass | None = None) -> list[ClassPeriod]:
        periods = await self._retention.periods(principal.tenant_id)
        return [one for one in periods if data_class in (None, one.data_class)]

    async def _page(
        self,
        request: Request,
        principal: TenantUser,
        status: int = 200,
        errors: form_errors.FormErrors = form_errors.NO_ERRORS,
        fields: dict[str, str] | None = None,
    ) -> Response:
        tenant_id, sees_records = principal.tenant_id, principal.may("audit.read")
        after = after_of(request, _CERTIFICATE_ID)
        certificates, holds = [], []
        if sees_records:
            certificates = [*await self._retention.certificates(tenant_id, after=after, limit=PAGE + 1)]
            holds = [*await self._retention.holds(tenant_id)]
        periods = await self._periods(principal)
        deletions, num_owed = await self._retention.pending(tenant_id)
        return self._console.render(
            request,
            "retention.html",
            status,
            principal=principal,
            section=SETTINGS.id,
            periods=periods,
            kept=kept_records(self._retention.bounds.books_years),
            backup_days=self._retention.bounds.backup_days,
            classes=[(one.data_class.value, one.terms.title) for one in periods],
            holds=holds,
            certificates=certificates[:PAGE],
            next_after=certificates[PAGE - 1].id if len(certificates) > PAGE else None,
            is_first=after is None,
            causes=CAUSES,
            num_pending=len(deletions),
            num_owed=num_owed,
            errors=errors,
            fields=fields or {},
        )


def _class_of(request: Request) -> DataClass:
    """Returns the class in the path. Raises HTTPException."""
    given = request.path_params["data_class"]
    if given not in DataClass.__members__.values():
        raise HTTPException(404)
    return DataClass(given)


def _days_of(given: str) -> int | None:
    """Returns the days of a form; None for an empty field, which stands for the default. Raises
    ValueError.
    """
    if not given:
        return None
    if not given.isascii() or not given.isdecimal() or len(given) > 6:
        raise ValueError("days must be a whole number, or empty for the default")
    return int(given)


def _file(body: bytes, media_type: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return Response(body, media_type=media_type, headers=headers)
