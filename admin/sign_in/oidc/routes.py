"""Signs in, joins and connects accounts with an identity provider.

An identity signs in the user it is bound to, binds to the signed-in user who asked for it, or accepts an
invitation to an email that the provider has verified. Users are never matched by email alone.

The provider's answer arrives by a GET; its state proves that a form of ours, in the same browser, asked for
it. The content security policy restricts redirects of forms, so the form leads over a page of ours.
"""

from __future__ import annotations

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.account.reauthentication import Reauthentication, redirect_with_new_session
from admin.services import ConsoleServices
from admin.sign_in.completion import SignInCompletion
from admin.sign_in.oidc.errors import IdentityRejected, ProviderUnavailable
from admin.sign_in.oidc.flows import Flow, Flows, Purpose
from admin.sign_in.oidc.provider import Provider
from admin.web import form_errors, security
from admin.web.authorization import EXPIRED
from admin.web.console import Console
from admin.web.form_submission import read_submission
from admin.web.principals import Principal, TenantUser
from admin.web.request_info import address_of, origin_of, request_id_of
from admin.web.sessions import OpenSession
from tenants.errors import IdentityTaken, InviteAddressMismatch, InviteInvalid, NameTaken
from tenants.external_identity import ExternalIdentity

log = structlog.get_logger(__name__)
_UNAVAILABLE = "{0} isn't responding. Try again in a moment."
_REJECTED = "Sign-in with {0} failed. Please try again."
_BROKEN_OFF = "Sign-in with {0} was cancelled or denied."
_STALE = "This sign-in expired or was started in another window. Please try again."
_NOBODY = (
    "No account is connected to this {0} account. Sign in with your password and connect it in your account "
    "settings, or open your invitation link."
)
_INVITE_INVALID = "This invitation is invalid or has expired. Ask an admin of the organization for a new one."
_NOT_THEIRS = (
    "This invitation is for a different email than your {0} account, or {0} hasn't verified your email. "
    "Join with a password; you can connect {0} afterwards."
)
_TAKEN = "This {0} account is already connected to another user."


class OidcRoutes:
    """What the buttons "with ..." lead to, and where providers lead back to. None without providers."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._providers = {provider.name: provider for provider in services.sign_in.providers}
        self._url = services.sign_in.url
        self._flows = Flows(services.redis)
        self._identities = services.account.identities
        self._invites = services.account.invites
        self._completion = SignInCompletion(console, services)
        self._reauthentication = Reauthentication(services)

    def routes(self) -> list[Route]:
        if not self._providers:
            return []
        public = self._console.public
        return [
            Route("/sign-in/with", public(self.sign_in), methods=["POST"]),
            Route("/join/with", public(self.join), methods=["POST"]),
            Route("/account/connect", self._console.account_action(self.connect), methods=["POST"]),
            Route("/sign-in/from/{provider}", public(self.answered), methods=["GET"]),
        ]

    async def sign_in(self, request: Request) -> Response:
        opened, form = await self._asked(request)
        return await self._lead(request, opened, form, "sign_in")

    async def join(self, request: Request) -> Response:
        opened, form = await self._asked(request)
        try:
            digests = self._invites.digests(form.get("token", "").strip().rpartition("#")[2])
        except InviteInvalid:
            return self._told(request, "Invalid invitation", _INVITE_INVALID, 422)
        return await self._lead(request, opened, form, "join", b"".join(digests))

    async def connect(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        try:
            await self._reauthentication.require(request, principal, form)
        except form_errors.FieldError as error:
            return self._told(request, "Not connected", error.message, 422, "/account")
        return await self._lead(request, principal.opened, form, "connect")

    async def answered(self, request: Request) -> Response:
        provider = self._providers.get(request.path_params["provider"])
        if provider is None:
            raise HTTPException(404, "This provider doesn't exist.")
        opened = await self._console.sessions.find(security.session_id(request))
        response = await self._answer(request, provider, opened)
        if opened is not None and opened.fresh and "set-cookie" not in response.headers:
            security.set_session(request, response, opened.id)
        return response

    async def _answer(self, request: Request, provider: Provider, opened: OpenSession | None) -> Response:
        query = request.query_params
        session = None if opened is None else opened.session
        flow = await self._flows.take(query.get("state", ""), provider.name, session)
        if flow is None or opened is None:
            return self._told(request, "Sign-in expired", _STALE, 400)
        back = "/account" if flow.purpose == "connect" else "/sign-in"
        if "code" not in query or "error" in query:
            return self._told(request, "Not signed in", _BROKEN_OFF.format(provider.title), 403, back)
        try:
            identity = await provider.identify(
                code=query["code"][:4096],
                issued_by=query.get("iss"),
                redirect_uri=flow.redirect_uri,
                nonce=flow.nonce,
                verifier=flow.verifier,
            )
        except IdentityRejected as error:
            log.warning("an answer of a provider is refused", provider=provider.name, reason=error.reason)
            return self._told(request, "Not signed in", _REJECTED.format(provider.title), 403, back)
        except ProviderUnavailable as error:
            return self._unavailable(request, provider, error, back)
        if flow.purpose == "connect":
            return await self._connected(request, opened, provider, identity)
        if flow.purpose == "join":
            return await self._joined(request, opened, provider, identity, flow)
        return await self._signed_in(request, opened, provider, identity, flow)

    async def _signed_in(
        self,
        request: Request,
        opened: OpenSession,
        provider: Provider,
        identity: ExternalIdentity,
        flow: Flow,
    ) -> Response:
        account = await self._identities.find(identity)
        if account is None:
            account = await self._identities.link_provisioned(identity, address_of(request))
        if account is None:
            return self._told(request, "Not connected", _NOBODY.format(provider.title), 403)
        return await self._completion.complete(request, opened, account, provider.name, flow.began_at)

    async def _joined(
        self,
        request: Request,
        opened: OpenSession,
        provider: Provider,
        identity: ExternalIdentity,
        flow: Flow,
    ) -> Response:
        try:
            account = await self._invites.accept_with_identity(
                flow.invites, identity, address=address_of(request), request_id=request_id_of(request)
            )
        except InviteInvalid:
            return self._told(request, "Invalid invitation", _INVITE_INVALID, 422)
        except InviteAddressMismatch:
            return self._told(request, "Email doesn't match", _NOT_THEIRS.format(provider.title), 403)
        except NameTaken:
            return self._told(request, "Already connected", _TAKEN.format(provider.title), 409)
        message = f"Welcome to {account.tenant_name}. Your role is {account.role}."
        return await self._completion.complete(
            request, opened, account, provider.name, flow.began_at, message=message
        )

    async def _connected(
        self, request: Request, opened: OpenSession, provider: Provider, identity: ExternalIdentity
    ) -> Response:
        principal = await self._console.principal_of(opened)
        if principal is None or (isinstance(principal, TenantUser) and principal.operator is not None):
            return self._told(request, "Sign-in expired", _STALE, 400)
        try:
            await self._identities.bind(principal.account, identity, principal.acting(request))
        except IdentityTaken:
            taken = _TAKEN.format(provider.title)
            return self._told(request, "Not connected", taken, 409, "/account")
        message = f"{provider.title} connected."
        return await redirect_with_new_session(self._console, request, principal, "/account", message)

    async def _asked(self, request: Request) -> tuple[OpenSession, dict[str, str]]:
        """Reads a form that needs no signed-in user. Raises `HTTPException` 403."""
        submission = await read_submission(request, self._console.sessions)
        if submission.accepted is None:
            raise HTTPException(403, EXPIRED)
        return submission.accepted, submission.fields

    async def _lead(
        self,
        request: Request,
        opened: OpenSession,
        form: dict[str, str],
        purpose: Purpose,
        invite: bytes = b"",
    ) -> Response:
        provider = self._providers.get(form.get("provider", ""))
        if provider is None:
            raise HTTPException(404, "This provider doesn't exist.")
        origin = self._url or origin_of(request)
        back = f"{origin}{request.scope.get('root_path', '')}/sign-in/from/{provider.name}"
        state, flow = await self._flows.begin(provider.name, purpose, opened.session, back, invite)
        try:
            url = await provider.authorization_url(
                redirect_uri=back, state=state, nonce=flow.nonce, verifier=flow.verifier
            )
        except ProviderUnavailable as error:
            return self._unavailable(
                request, provider, error, "/account" if purpose == "connect" else "/sign-in"
            )
        return self._console.render(request, "lead_on.html", title=provider.title, url=url)

    def _unavailable(
        self, request: Request, provider: Provider, error: ProviderUnavailable, back: str
    ) -> Response:
        log.error("a provider of identities cannot be asked", provider=provider.name, reason=error.reason)
        return self._told(request, "Provider unavailable", _UNAVAILABLE.format(provider.title), 503, back)

    def _told(self, request: Request, title: str, text: str, status: int, back: str = "/sign-in") -> Response:
        label = "Back to account settings" if back == "/account" else "Back to sign-in"
        return self._console.render(
            request, "sign_in_notice.html", status, title=title, text=text, back=back, label=label
        )
