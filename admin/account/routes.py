"""Serves the routes of the signed-in user's account: name, password, connected providers and sessions.

A change to how the user signs in asks for the password again, starts a new session and ends all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.account import page
from admin.account.page import AccountPage
from admin.account.reauthentication import Reauthentication, redirect_with_new_session
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import Principal
from tenants.passwords import MIN_PASSWORD_LEN


class AccountRoutes:
    """`/account`, and below it what the page's forms do."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._members = services.account.members
        self._credentials = services.account.credentials
        self._identities = services.account.identities
        self._providers = services.sign_in.providers
        self._pages = AccountPage(
            services.account.second_factors,
            services.account.identities,
            console.sessions,
            {provider.issuer: provider.title for provider in services.sign_in.providers},
        )
        self._reauthentication = Reauthentication(services)
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        account_view, account_action = self._console.account_view, self._console.account_action
        return [
            Route("/account", account_view(self.show), methods=["GET"]),
            Route("/account/name", account_action(self.rename), methods=["POST"]),
            Route("/account/password", account_action(self.change_password), methods=["POST"]),
            Route("/account/identities/{identity}/remove", account_action(self.unbind), methods=["POST"]),
            Route("/account/sessions/end-others", account_action(self.end_others), methods=["POST"]),
            Route("/account/sessions/{handle}/end", account_action(self.end_one), methods=["POST"]),
        ]

    async def show(self, request: Request, principal: Principal) -> Response:
        return await self._page(request, principal, {}, form_errors.NO_ERRORS)

    async def rename(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        account = principal.account
        try:
            await self._members.update(
                account.tenant_id, account.user_id, principal.acting(request), name=form.get("name", "")
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return await self._page(request, principal, form, errors, status)
        return await self._console.redirect_with_message(request, principal, "/account", "Name updated.")

    async def change_password(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        account = principal.account
        try:
            if form.get("password") != form.get("again"):
                raise form_errors.FieldError("password", "The passwords don't match.")
            await self._reauthentication.require(request, principal, form, "old")
            await self._credentials.change(
                account, form.get("old", ""), form.get("password", ""), principal.acting(request)
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return await self._page(request, principal, {}, errors, status)
        message = "Password changed. You've been signed out on all other devices."
        return await redirect_with_new_session(self._console, request, principal, "/account", message)

    async def unbind(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        await self._identities.unbind(
            principal.account, request.path_params["identity"], principal.acting(request)
        )
        return await redirect_with_new_session(self._console, request, principal, "/account", "Disconnected.")

    async def end_one(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        handle = request.path_params["handle"]
        if page.HANDLE.fullmatch(handle) is None:
            raise HTTPException(404, "This session doesn't exist.")
        ended = await self._console.sessions.end_of_user(
            principal.account.user_id, handle=handle, but=principal.opened.id
        )
        message = "Session signed out." if ended else "This session had already ended."
        return await self._console.redirect_with_message(request, principal, "/account", message)

    async def end_others(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        await self._credentials.end_sessions(principal.account)
        return await redirect_with_new_session(
            self._console, request, principal, "/account", "You've been signed out on all other devices."
        )

    async def _page(
        self,
        request: Request,
        principal: Principal,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        account_page = await self._pages.gather(principal.account, principal.opened)
        connected = {one.provider for one in account_page.identities}
        context: dict[str, Any] = {
            "page": account_page,
            "fields": {"name": fields.get("name", principal.account.name)},
            "errors": errors,
            "providers": [(one.name, one.title) for one in self._providers if one.title not in connected],
            "min_len": MIN_PASSWORD_LEN,
        }
        return self._console.render(
            request, "account.html", status, principal=principal, section="account", **context
        )
