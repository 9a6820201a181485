"""Gathers the account page: the signed-in user's name, sign-in methods and active sessions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import segno
from markupsafe import Markup

from admin.web.sessions import OpenSession, SessionStore, SessionSummary, handle_of
from telemetry.tasks import gather_all
from tenants.accounts import Membership
from tenants.identities.second_factors import FactorView, SecondFactors
from tenants.identities.service import Identities

FIELDS = ("name", "old", "password")
HANDLE = re.compile(r"[0-9a-f]{64}")
_AGENTS = (
    # The first that a browser names is what it is; most name others after it.
    *(("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("HeadlessChrome/", "Chrome")),
    *(("Chrome/", "Chrome"), ("Safari/", "Safari"), ("curl/", "curl")),
)
_SYSTEMS = (
    *(("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("Windows", "Windows")),
    *(("Mac OS X", "macOS"), ("CrOS", "ChromeOS"), ("Linux", "Linux")),
)


@dataclass(frozen=True)
class SessionRow:
    handle: str
    agent: str
    address: str
    since: datetime
    seen: datetime
    is_this: bool


@dataclass(frozen=True)
class IdentityRow:
    id: str
    provider: str
    email: str
    since: datetime


@dataclass(frozen=True)
class AccountView:
    factor: FactorView | None
    sessions: list[SessionRow]
    identities: list[IdentityRow]


class AccountPage:
    """Gathers the page."""

    def __init__(
        self,
        factors: SecondFactors,
        identities: Identities,
        sessions: SessionStore,
        providers: Mapping[str, str],
    ) -> None:
        """`providers`: what they are called, by their issuers."""
        self._factors = factors
        self._identities = identities
        self._sessions = sessions
        self._providers = providers

    async def gather(self, account: Membership, opened: OpenSession) -> AccountView:
        """Raises DatabaseUnavailable."""
        factor, identities, sessions = await gather_all(
            self._factors.find(account),
            self._identities.list(account),
            self._sessions.of_user(account.user_id),
        )
        this, now = handle_of(opened), datetime.now(UTC)
        return AccountView(
            factor,
            [_session(known, this, now) for known in sessions],
            [
                IdentityRow(one.id, self._provider(one.issuer), one.email, one.created_at)
                for one in identities
            ],
        )

    def _provider(self, issuer: str) -> str:
        if issuer.startswith("saml:"):
            return "Single sign-on (SAML)"
        return self._providers.get(issuer, issuer)


def picture(uri: str) -> Markup:
    """A QR code, as SVG: dark on light in either theme, or cameras do not read it."""
    code = segno.make(uri, error="m", micro=False)
    drawn = code.svg_inline(border=3, omitsize=True, svgclass="qr", lineclass=None)
    return Markup(drawn.replace("<svg ", '<svg role="img" aria-label="QR code" ', 1))


def agent_words(agent: str) -> str:
    """As "Firefox on Linux", as far as a browser says what it is."""
    browser = next((name for mark, name in _AGENTS if mark in agent), "")
    system = next((name for mark, name in _SYSTEMS if mark in agent), "")
    if browser and system:
        return f"{browser} on {system}"
    return browser or system or "Unknown browser"


def _session(known: SessionSummary, this: str, now: datetime) -> SessionRow:
    session = known.session
    return SessionRow(
        known.handle,
        agent_words(session.agent),
        session.address or "unknown",
        datetime.fromtimestamp(session.started_at, UTC),
        now - timedelta(seconds=known.idle_s),
        known.handle == this,
    )
