"""What every page of the console shares: its templates, who is looking, and how changes are let in.

Owns the order of checks on a request: private connection, session, account, right, and for a change same
origin and CSRF token. Owns too whose routes are whose: a tenant's users have `serving` and `changing`,
operators have `operating` and `changing_service`, which are nothing to anybody else. Owns what a visitor is
told when something is refused: a page, or JSON where a script asks. Refuses to know what the pages show.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from admin import formatting
from admin.charts import svg
from admin.navigation import OPERATOR_SECTIONS, grouped, sections_for
from admin.services import ConsoleServices, Explanations
from admin.web import security
from admin.web.form_submission import FOREIGN
from admin.web.forms import MAX_FIELDS, read_form
from admin.web.principals import Operator, Person, Visitor
from admin.web.sessions import Opened, Session, SessionStore
from billing.invoices.accounts import Account as BillingAccount
from db.errors import UnknownCursor
from tenants.accounts import Account
from tenants.errors import TenantNotFound, UserNotFound
from tenants.roles import Right

__all__ = ["Frame", "Operator", "Person", "Visitor", "origin_of"]

HERE = Path(__file__).parent.parent
OPERATOR_HOME = "/operator"
ENROL = "/account/second-factor"
CSRF_HEADER = "x-csrf-token"
EXPIRED = "This form had expired. Please try again."
_NEEDS_HTTPS = (
    "The console signs people in over HTTPS only, or over plain HTTP on this machine (http://127.0.0.1 or "
    "http://localhost). Put a TLS proxy that sets X-Forwarded-Proto in front of the service, "
    "and name it in ROOTSTOCK_API_FORWARDED_ALLOW_IPS."
)
_LOOKS_ON = (
    "You look at this console read-only: nothing of it can be changed. Leave, and open it with full access "
    "to change something."
)
_MEMBERS_ALONE = (
    "Only members of the organisation do this: it spends their money, or makes what lets somebody in. An "
    "operator in their place cannot."
)
_TITLES = {400: "Not understood", 403: "Not allowed", 404: "Nothing here", 405: "Not allowed"}


Endpoint = Callable[[Request], Awaitable[Response]]
Serving = Callable[[Request, Visitor], Awaitable[Response]]
Changing = Callable[[Request, Visitor, dict[str, str]], Awaitable[Response]]
Operating = Callable[[Request, Operator], Awaitable[Response]]
ChangingService = Callable[[Request, Operator, dict[str, str]], Awaitable[Response]]
Answering = Callable[[Request, Person], Awaitable[Response]]
ChangingOwn = Callable[[Request, Person, dict[str, str]], Awaitable[Response]]


class Frame:
    """Around every route of the console."""

    def __init__(self, services: ConsoleServices) -> None:
        self.sessions = SessionStore(services.redis)
        self._accounts = services.accounts
        self._impersonations = services.operation.impersonations
        self._incidents = services.operation.incidents
        self._bills = services.billing.accounts
        self._operators_need_factor = services.sign_in.operators_second_factor
        self._explanations: Explanations = services.explanations
        self._refusals: tuple[type[Exception], ...] = (HTTPException, *services.explanations.known)
        self.version = _fingerprint(HERE / "static")
        self._templates = _templates(self.version)

    # Answers ----------------------------------------------------------------------------------------------

    def page(self, request: Request, template: str, status: int = 200, **context: object) -> HTMLResponse:
        """`visitor` in the context: whoever is signed in, for pages within the frame."""
        visitor = context.get("visitor")
        if isinstance(visitor, Visitor | Operator):
            is_operator = isinstance(visitor, Operator)
            sections = (
                sections_for(visitor.may) if isinstance(visitor, Visitor) else grouped(OPERATOR_SECTIONS)
            )
            context |= {
                "navigation": sections,
                "home": OPERATOR_HOME if is_operator else "/",
                "take_said": lambda: _take_said(request, visitor),
            }
        root = request.scope.get("root_path", "")
        guest = getattr(request.state, "guest", None)
        context["incidents"] = getattr(request.state, "incidents", ())
        text = self._templates.get_template(template).render(root=root, guest=guest, **context)
        return HTMLResponse(text, status_code=status)

    async def done(self, request: Request, visitor: Person, path: str, message: str) -> Response:
        """Go on to another page, which tells what was done."""
        await self.sessions.say(visitor.opened, message)
        return self.to(request, path)

    @staticmethod
    def to(request: Request, path: str) -> RedirectResponse:
        """Go on to another page of the console."""
        return RedirectResponse(quote(request.scope.get("root_path", "")) + path, status_code=303)

    async def refused(self, request: Request, error: Exception) -> Response:
        """What is told of an error that is the visitor's, or passes."""
        if isinstance(error, UnknownCursor):
            error = HTTPException(404, "There is no such page of the list.")
        if isinstance(error, HTTPException):
            title = _TITLES.get(error.status_code, "This did not work")
            return self._told(request, error.status_code, title, str(error.detail), None)
        status, envelope = self._explanations.tell(error)
        told = envelope["error"]
        title = _TITLES.get(status, "Try again in a moment" if status >= 500 else "This did not work")
        return self._told(request, status, title, str(told["message"]), told.get("param"))

    def _told(self, request: Request, status: int, title: str, text: str, param: str | None) -> Response:
        if _by_script(request):
            return JSONResponse({"error": {"message": text, "param": param}}, status_code=status)
        return self.page(request, "notice.html", status, title=title, text=text)

    # Who asks ---------------------------------------------------------------------------------------------

    def serving(self, serve: Serving, right: Right | None = None) -> Endpoint:
        """A route for signed-in users, whose role has `right` if one is asked for: others are sent to sign
        in, operators to their own pages.
        """

        async def answer(request: Request, person: Person) -> Response:
            if isinstance(person, Operator):
                return await self._led_home(request, person)
            if right is not None:
                self.require_right(person, right)
            return await serve(request, person)

        return self._answering(answer)

    def changing(
        self, change: Changing, right: Right = "adapters.write", *, members_alone: bool = False
    ) -> Endpoint:
        """A route for a form of a signed-in user whose role has `right`. `members_alone`: of no operator in
        their place, as it spends the tenant's money or makes what lets somebody in.
        """

        async def serve(request: Request, visitor: Visitor) -> Response:
            self.require_same_origin(request)
            form = await read_form(request)
            self.require_token(visitor, form.get("csrf_token", ""))
            self.require_may_change(visitor, right, members_alone)
            return await change(request, visitor, form)

        return self.serving(serve)

    def scripted(
        self, change: Serving, right: Right = "adapters.write", *, members_alone: bool = False
    ) -> Endpoint:
        """A route that our own scripts change something through, for users whose role has `right`: the token
        comes in a header, which no form of another site can send. `members_alone` as in `changing`.
        """

        async def serve(request: Request, visitor: Visitor) -> Response:
            self.require_same_origin(request)
            self.require_token(visitor, request.headers.get(CSRF_HEADER, ""))
            self.require_may_change(visitor, right, members_alone)
            return await change(request, visitor)

        return self.serving(serve)

    def operating(self, serve: Operating) -> Endpoint:
        """A route of the service's own: to whoever is no operator it is not there."""

        async def answer(request: Request, person: Person) -> Response:
            return await serve(request, operator_of(person))

        return self._answering(answer)

    def changing_service(
        self, change: ChangingService, *, always: bool = False, max_fields: int = MAX_FIELDS
    ) -> Endpoint:
        """A route for a form of an operator; unless `always`, of one who does not only look on."""

        async def serve(request: Request, operator: Operator) -> Response:
            self.require_same_origin(request)
            form = await read_form(request, max_fields)
            self.require_token(operator, form.get("csrf_token", ""))
            if not (always or operator.may_change):
                raise HTTPException(403, "You look on: another operator has to change this.")
            return await change(request, operator, form)

        return self.operating(serve)

    def told(self, serve: Endpoint) -> Endpoint:
        """A route for whoever is not signed in, or need not be."""

        async def endpoint(request: Request) -> Response:
            self.require_private(request)
            try:
                return await serve(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except self._refusals as error:
                return await self.refused(request, error)

        return endpoint

    def own(self, serve: Answering) -> Endpoint:
        """A route of whoever is signed in, user or operator, about themselves: not of an operator in a
        user's place. Also of one who has yet to set up a second factor.
        """

        async def answer(request: Request, person: Person) -> Response:
            if isinstance(person, Visitor) and person.operator is not None:
                raise HTTPException(403, _MEMBERS_ALONE)
            return await serve(request, person)

        return self._answering(answer, enrolling=True)

    def changing_own(self, change: ChangingOwn) -> Endpoint:
        """A route for a form about whoever is signed in."""

        async def serve(request: Request, person: Person) -> Response:
            self.require_same_origin(request)
            form = await read_form(request)
            self.require_token(person, form.get("csrf_token", ""))
            return await change(request, person, form)

        return self.own(serve)

    def _answering(self, answer: Answering, *, enrolling: bool = False) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            self.require_private(request)
            opened = await self.sessions.find(security.session_id(request))
            person = None if opened is None else await self.person_of(opened)
            if opened is None or person is None:
                if _by_script(request):
                    told = {"message": "You are signed out. Sign in again.", "param": None}
                    return JSONResponse({"error": told}, status_code=401)
                return self.to(request, "/sign-in")
            opened = person.opened
            signed_in = (person.operator if isinstance(person, Visitor) else None) or person.account
            if signed_in.must_enrol and not enrolling:
                if _by_script(request):
                    told = {"message": "Set up a second factor first.", "param": None}
                    return JSONResponse({"error": told}, status_code=403)
                return self.to(request, ENROL)
            if isinstance(person, Visitor) and person.operator is not None:
                request.state.guest = person
            try:
                if isinstance(person, Visitor):
                    request.state.incidents = await self._incidents.told()
                response = await answer(request, person)
            except ClientDisconnect:
                response = Response(status_code=499)
            except self._refusals as error:
                response = await self.refused(request, error)
            if getattr(request.state, "has_told", False):
                await self.sessions.say(opened, "")
            # However it ended: the old id dies in seconds. Unless the answer has given another one.
            if opened.fresh and "set-cookie" not in response.headers:
                security.set_session(request, response, opened.id)
            return response

        return endpoint

    async def _led_home(self, request: Request, operator: Operator) -> Response:
        """An operator at a page of tenants': by the address of the console itself, or out of time."""
        taken = operator.session.impersonation
        if request.method not in ("GET", "HEAD") or _by_script(request):
            raise HTTPException(403, "You are in no organisation's console, or not any more.")
        if taken is None:
            return self.to(request, OPERATOR_HOME)
        opened = await self.sessions.impersonate(operator.opened, None)
        await self.sessions.say(opened, "Your time in this console is over.")
        response = self.to(request, f"{OPERATOR_HOME}/tenants/{quote(taken.tenant_id)}")
        security.set_session(request, response, opened.id)
        return response

    @staticmethod
    def require_private(request: Request) -> None:
        if not security.is_private_connection(request):
            raise HTTPException(403, _NEEDS_HTTPS)

    @staticmethod
    def require_same_origin(request: Request) -> None:
        if not security.is_same_origin(request):
            raise HTTPException(403, FOREIGN)

    @staticmethod
    def require_token(visitor: Person, token: str) -> None:
        if not visitor.session.accepts(token):
            raise HTTPException(403, EXPIRED)

    @classmethod
    def require_may_change(cls, visitor: Visitor, right: Right, members_alone: bool) -> None:
        if visitor.looks_on:
            raise HTTPException(403, _LOOKS_ON)
        if members_alone and visitor.operator is not None:
            raise HTTPException(403, _MEMBERS_ALONE)
        cls.require_right(visitor, right)

    @staticmethod
    def require_right(visitor: Visitor, right: Right) -> None:
        if not visitor.may(right):
            raise HTTPException(
                403,
                f"Your role ({visitor.role}) does not let you do this. An admin of your organisation "
                "can change your role, or do it for you.",
            )

    @staticmethod
    def require_admin(visitor: Visitor) -> None:
        if not visitor.is_admin:
            raise HTTPException(403, "Only admins of your organisation may do this.")

    async def person_of(self, opened: Opened) -> Person | None:
        """Who is signed in; None where nobody is, or is no longer."""
        session = opened.session
        if session.user_id is None or session.tenant_id is None:
            return None
        account = await self._accounts.find(session.user_id, session.tenant_id)
        # Removed since, or with another password: the session must not outlive that.
        if account is None or _is_over(session, account):
            await self.sessions.end(opened.id)
            return None
        opened = await self.sessions.with_role(opened, account.role)
        if not account.is_operator:
            return Visitor(account, opened, owing=await self._owing(account))
        if self._operators_need_factor:
            account = replace(account, needs_second_factor=True)
        taken = session.impersonation
        if taken is None or taken.ends_at <= time.time():
            return Operator(account, opened)
        try:
            theirs = await self._impersonations.account(taken.tenant_id, taken.user_id)
        except (TenantNotFound, UserNotFound):  # meanwhile
            return Operator(account, opened)
        return Visitor(theirs, opened, account, await self._owing(theirs))

    async def _owing(self, account: Account) -> BillingAccount | None:
        return None if account.billing_state == "active" else await self._bills.find(account.tenant_id)


def _is_over(session: Session, account: Account) -> bool:
    return account.sessions_from is not None and session.started_at < account.sessions_from.timestamp()


def operator_of(person: Person) -> Operator:
    """Who operates the service, also while in a tenant's console. Raises `HTTPException`, as for a path that
    is none.
    """
    if isinstance(person, Operator):
        return person
    if person.operator is None:
        raise HTTPException(404)
    return Operator(person.operator, person.opened)


def origin_of(request: Request) -> str:
    """Of this server, as the visitor sees it."""
    return f"{request.url.scheme}://{request.url.netloc}"


def _take_said(request: Request, visitor: Person) -> str:
    """What a page is to tell, once: whoever serves the request forgets it then."""
    request.state.has_told = bool(visitor.session.said)
    return visitor.session.said


def _by_script(request: Request) -> bool:
    return request.headers.get("accept", "").startswith("application/json")


@functools.cache
def _templates(version: str) -> Environment:
    """Compiled once in a process, however many consoles it has."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["version"] = version
    templates.filters |= formatting.FILTERS | svg.FILTERS
    return templates


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
