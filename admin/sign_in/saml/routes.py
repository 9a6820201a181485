"""Serves signing in with SAML 2.0: this service's metadata, the way to the provider, and the way back.

The addresses are there for every well-formed organization id, so that they reveal no organization. The
response to a request is accepted once, in the browser that made the request; a response without a request
only if the organization allows that.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from urllib.parse import urlsplit

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from admin.services import ConsoleServices
from admin.sign_in.completion import SignInCompletion
from admin.sign_in.lockout import Lockout, waiting_words
from admin.sign_in.saml.flows import SamlFlows, VerifiedResponse
from admin.web import security
from admin.web.authorization import EXPIRED
from admin.web.console import Console
from admin.web.form_submission import read_submission
from admin.web.forms import read_form
from admin.web.request_info import MAX_PATH_LEN, address_of, console_url_of, request_id_of
from admin.web.sessions import OpenSession
from tenants.saml.documents import MAX_BYTES
from tenants.saml.errors import SamlRefused
from tenants.saml.models import SamlConnection
from tenants.saml.responses import read_assertion
from tenants.saml.service_provider import ServiceProvider, is_tenant_id, path_of

log = structlog.get_logger(__name__)
TITLE = "your organization"
_MAX_FORM = 2 * MAX_BYTES
"""Of a response in base64, whose + and / are three characters each in a form."""
_PAGE = re.compile(r"/[A-Za-z0-9/_~.-]*(\?[A-Za-z0-9/_~.&=%+-]*)?")
_NONE = "Single sign-on isn't available for this organization. Sign in with your password."
_NONE_FOR_EMAIL = (
    "No single sign-on is set up for this email. Sign in with your password, or use the sign-in link of your "
    "organization."
)
_STALE = "This sign-in expired, was used already or was started in another window. Please try again."
_NOT_ASKED = (
    "This organization only accepts sign-ins that begin here. Open the sign-in link of your organization, or "
    "ask an owner to allow sign-ins that begin at the identity provider."
)
_REPLAYED = "This sign-in was used already. Please try again."


class SamlRoutes:
    """`/saml/...` and `/sign-in/sso`, which need no signed-in user."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._sessions = console.sessions
        self._connections = services.account.saml_connections
        self._sign_in = services.account.saml_sign_in
        self._url = services.sign_in.url
        self._flows = SamlFlows(services.redis)
        self._lockout = Lockout(services.redis)
        self._completion = SignInCompletion(console, services)

    def routes(self) -> list[Route]:
        public = self._console.public
        tenant = "{organization}"
        return [
            Route("/sign-in/sso", public(self.show), methods=["GET"]),
            Route("/sign-in/sso", public(self.find), methods=["POST"]),
            Route(path_of(tenant, "metadata"), public(self.metadata), methods=["GET"]),
            Route(path_of(tenant, "start"), public(self.start), methods=["GET"]),
            Route(path_of(tenant, "acs"), public(self.consume), methods=["POST"]),
            Route(path_of(tenant, "finish"), public(self.finish), methods=["GET"]),
        ]

    # The way out --------------------------------------------------------------------------------------------

    async def show(self, request: Request) -> Response:
        opened = await self._opened(request)
        if opened.session.user_id is not None:
            return self._with_session(request, opened, self._console.redirect(request, "/"))
        return self._form(request, opened)

    async def find(self, request: Request) -> Response:
        """Leads to the identity provider of the member with an address."""
        submission = await read_submission(request, self._sessions)
        opened, email = submission.accepted, submission.fields.get("email", "").strip()[:254]
        if opened is None:
            return self._form(request, submission.opened or await self._sessions.begin(), email, EXPIRED, 403)
        address = address_of(request)
        wait_s = await self._lockout.attempt(f"sso:{email}", address)
        if wait_s:
            response = self._form(request, opened, email, waiting_words(wait_s), 429)
            response.headers["Retry-After"] = str(wait_s)
            return response
        connection = await self._connections.of_member(email)
        if connection is None:
            return self._form(request, opened, email, _NONE_FOR_EMAIL, 404)
        await self._lockout.succeeded(f"sso:{email}", address)
        return await self._lead(request, opened, connection)

    async def metadata(self, request: Request) -> Response:
        document = self._provider(request).metadata()
        return Response(document, media_type="application/samlmetadata+xml")

    async def start(self, request: Request) -> Response:
        provider = self._provider(request)
        connection = await self._connections.enabled(provider.tenant_id)
        if connection is None:
            return self._told(request, "Single sign-on isn't available", _NONE, 404)
        opened = await self._opened(request)
        if opened.session.user_id is not None:
            return self._with_session(request, opened, self._console.redirect(request, "/"))
        return self._with_session(request, opened, await self._lead(request, opened, connection))

    async def _lead(self, request: Request, opened: OpenSession, connection: SamlConnection) -> Response:
        provider = ServiceProvider(console_url_of(request, self._url), connection.tenant_id)
        request_id = await self._flows.begin(connection.id, opened.session)
        url = provider.sign_in_url(connection.sso_url, request_id)
        return self._console.render(request, "lead_on.html", title=TITLE, url=url)

    # The way back -------------------------------------------------------------------------------------------

    async def consume(self, request: Request) -> Response:
        """Verifies a response, and leads the browser to the page that completes the sign-in. It comes from
        another site by design: what protects it is the signature, and the request's browser.
        """
        provider = self._provider(request)
        form = await read_form(request, max_bytes=_MAX_FORM)
        connection = await self._connections.enabled(provider.tenant_id)
        if connection is None:
            return self._told(request, "Single sign-on isn't available", _NONE, 404)
        try:
            document = _decoded(form.get("SAMLResponse", ""))
            # In a thread: a large document takes milliseconds that other requests would wait for.
            assertion = await asyncio.to_thread(
                read_assertion, document, connection.identity_provider, provider
            )
            if assertion.in_response_to is None and not connection.allows_idp_initiated:
                raise SamlRefused(_NOT_ASKED)
            if not await self._flows.is_new(connection.id, assertion):
                raise SamlRefused(_REPLAYED)
        except SamlRefused as error:
            return self._refused(request, connection, error)
        next_path = "" if assertion.in_response_to else self._own_page(request, form.get("RelayState", ""))
        kept = await self._flows.keep(VerifiedResponse(connection.id, assertion, next_path, time.time()))
        root = request.scope.get("root_path", "")
        return RedirectResponse(f"{root}{path_of(provider.tenant_id, 'finish')}?proof={kept}", 303)

    async def finish(self, request: Request) -> Response:
        provider = self._provider(request)
        if "proof" not in request.query_params:
            return self._console.redirect(request, "/sign-in")
        verified = await self._flows.kept(request.query_params["proof"])
        connection = await self._connections.enabled(provider.tenant_id)
        if verified is None or connection is None or verified.connection_id != connection.id:
            return self._told(request, "Sign-in expired", _STALE, 400)
        opened = await self._sessions.find(security.session_id(request))
        response = await self._finished(request, opened, connection, verified)
        if opened is not None and "set-cookie" not in response.headers:
            self._with_session(request, opened, response)
        return response

    async def _finished(
        self,
        request: Request,
        opened: OpenSession | None,
        connection: SamlConnection,
        verified: VerifiedResponse,
    ) -> Response:
        asked = verified.assertion.in_response_to
        began_at = verified.verified_at
        if asked is not None:
            session = None if opened is None else opened.session
            flow = await self._flows.take(asked, connection.id, session)
            if flow is None:
                return self._told(request, "Sign-in expired", _STALE, 400)
            began_at = flow.began_at
        elif not connection.allows_idp_initiated:
            return self._told(request, "Not signed in", _NOT_ASKED, 403)
        try:
            account = await self._sign_in.member(
                connection,
                verified.assertion,
                address=address_of(request),
                request_id=request_id_of(request),
            )
        except SamlRefused as error:
            return self._refused(request, connection, error)
        if asked is None:
            # The provider may name another user than the one who is signed in here.
            if opened is not None:
                await self._sessions.end(opened.id)
            opened = await self._sessions.begin(next_path=verified.next_path)
        return await self._completion.complete(request, opened, account, "saml", began_at)

    def _own_page(self, request: Request, relay_state: str) -> str:
        """Returns the page of the console that RelayState names, below the console; "" for anything else."""
        path = relay_state
        own = urlsplit(console_url_of(request, self._url))
        prefix = f"{own.scheme}://{own.netloc}"
        path = path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path
        if len(path) > MAX_PATH_LEN or not path.startswith(f"{own.path}/"):
            return ""
        path = path.removeprefix(own.path)
        is_page = _PAGE.fullmatch(path) is not None and "//" not in path and "/../" not in f"{path}/"
        return path if is_page else ""

    def _refused(self, request: Request, connection: SamlConnection, error: SamlRefused) -> Response:
        log.warning("a SAML response is refused", tenant=connection.tenant_id, reason=error.reason[:500])
        return self._told(request, "Not signed in", error.reason, 403)

    # --------------------------------------------------------------------------------------------------------

    def _provider(self, request: Request) -> ServiceProvider:
        tenant_id = request.path_params["organization"]
        if not is_tenant_id(tenant_id):
            raise HTTPException(404, "This organization doesn't exist.")
        return ServiceProvider(console_url_of(request, self._url), tenant_id)

    async def _opened(self, request: Request) -> OpenSession:
        return await self._sessions.find(security.session_id(request)) or await self._sessions.begin()

    def _form(
        self, request: Request, opened: OpenSession, email: str = "", problem: str = "", status: int = 200
    ) -> Response:
        response = self._console.render(
            request,
            "sign_in_sso.html",
            status,
            csrf_token=opened.session.csrf_token,
            email=email,
            problem=problem,
        )
        return self._with_session(request, opened, response)

    @staticmethod
    def _with_session(request: Request, opened: OpenSession, response: Response) -> Response:
        if opened.fresh:
            security.set_session(request, response, opened.id)
        return response

    def _told(self, request: Request, title: str, text: str, status: int) -> Response:
        return self._console.render(
            request,
            "sign_in_notice.html",
            status,
            title=title,
            text=text,
            back="/sign-in",
            label="Back to sign-in",
        )


def _decoded(given: str) -> bytes:
    """Returns the document of the POST binding. Raises SamlRefused."""
    if not given:
        raise SamlRefused("The identity provider sent no SAMLResponse.")
    try:
        return base64.b64decode("".join(given.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SamlRefused("The SAMLResponse is not base64.") from error
