"""Serves the routes of the price list: its versions, previewing and publishing a new one.

A draft is the fields of its form and is stored nowhere. It can be published only as a replacement of the
version that its review compared it with.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import PRICES
from admin.operator.prices import page
from admin.operator.prices.page import PricePages, PriceReview
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import Operator
from billing.errors import PriceTaken
from billing.previews.service import Preview
from billing.pricing import AMOUNTS

HERE = PRICES.path


class PriceRoutes:
    """Below `/operator/prices`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._prices = services.operation.prices
        self._pages = PricePages(self._prices, services.operation.previews)
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        return [
            Route(HERE, self._console.operator_view(self.show), methods=["GET"]),
            Route(HERE, self._console.operator_action(self.publish), methods=["POST"]),
            Route(f"{HERE}/new", self._console.operator_view(self.draft), methods=["GET"]),
            Route(f"{HERE}/review", self._console.operator_view(self.review), methods=["GET"]),
        ]

    async def show(self, request: Request, operator: Operator) -> Response:
        return self._console.render(
            request,
            "operator/prices.html",
            principal=operator,
            section=PRICES.id,
            page=await self._pages.list(datetime.now(UTC)),
            labels=page.LABELS,
            units=page.UNITS,
        )

    async def draft(self, request: Request, operator: Operator) -> Response:
        """The form, with the effect of its fields beneath it once there are any."""
        now = datetime.now(UTC)
        given = {name: request.query_params.get(name, "") for name in page.FIELDS}
        if "input" not in request.query_params:
            current = await self._pages.in_effect(now)
            given |= {name: page.written(getattr(current, name, 0)) for name in AMOUNTS}
            return self._form(request, operator, given)
        try:
            amounts = page.read_amounts(given)
        except self._expected_errors as error:
            return self._problem(request, operator, given, error)
        return self._form(request, operator, given, preview=await self._pages.preview(amounts, now))

    async def review(self, request: Request, operator: Operator) -> Response:
        """Each price beside the one it replaces, to be confirmed. Without prices, the form for them."""
        if "input" not in request.query_params:
            return await self.draft(request, operator)
        given = {name: request.query_params.get(name, "") for name in page.FIELDS}
        try:
            review = await self._read(given)
        except self._expected_errors as error:
            return self._problem(request, operator, given, error)
        return self._review(request, operator, given, review)

    async def publish(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        try:
            review = await self._read(form)
            if form.get("replaces") != review.replaces:
                problem = "The prices changed since you reviewed them. Review the changes again."
                return self._review(request, operator, form, review, 409, problem)
            made = await self._prices.add(
                **review.amounts, effective_from=review.effective_from, actor=operator.acting(request)
            )
        except PriceTaken:
            errors = form_errors.FormErrors(at="Another version takes effect at this time.")
            return self._form(request, operator, form, 409, errors)
        except self._expected_errors as error:
            return self._problem(request, operator, form, error)
        message = f"Prices published. Effective from {made.effective_from:%Y-%m-%d %H:%M} UTC."
        return await self._console.redirect_with_message(request, operator, HERE, message)

    async def _read(self, given: Mapping[str, str]) -> PriceReview:
        """Raises what the form explains."""
        now = datetime.now(UTC)
        return await self._pages.review(page.read_amounts(given), page.read_moment(given, now), now)

    def _review(
        self,
        request: Request,
        operator: Operator,
        given: Mapping[str, str],
        review: PriceReview,
        status: int = 200,
        problem: str = "",
    ) -> Response:
        return self._console.render(
            request,
            "operator/price_review.html",
            status,
            principal=operator,
            section=PRICES.id,
            fields={name: given.get(name, "") for name in page.FIELDS},
            review=review,
            problem=problem,
        )

    def _problem(
        self, request: Request, operator: Operator, given: Mapping[str, str], error: Exception
    ) -> Response:
        status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
        if "effective_from" in errors:
            errors = form_errors.FormErrors(at=errors["effective_from"])
        return self._form(request, operator, given, status, errors)

    def _form(
        self,
        request: Request,
        operator: Operator,
        given: Mapping[str, str],
        status: int = 200,
        errors: form_errors.FormErrors = form_errors.NO_ERRORS,
        preview: Preview | None = None,
    ) -> Response:
        return self._console.render(
            request,
            "operator/price_new.html",
            status,
            principal=operator,
            section=PRICES.id,
            fields={name: given.get(name, "") for name in page.FIELDS},
            errors=errors,
            preview=preview,
            amounts=AMOUNTS,
            labels=page.LABELS,
            units=page.UNITS,
        )
