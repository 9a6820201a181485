"""Constructs what console sign-in needs besides accounts, from settings: mail and identity providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from admin.mail import ConsoleMail
from admin.settings import ConsoleSettings
from admin.sign_in.oidc.provider import Provider
from admin.sign_in.services import SignInServices
from billing.notifications.settings import NotificationSettings

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_sign_in(
    settings: ConsoleSettings, notifications: NotificationSettings
) -> AsyncIterator[SignInServices]:
    """Contacts no provider yet, so that an unreachable one does not keep the process from starting."""
    mail, mailer = None, notifications.mailer()
    if mailer is not None and settings.url:
        mail = ConsoleMail(mailer, f"{settings.url}/console")
    elif mailer is not None:
        log.warning("invitations are not mailed", reason="ROOTSTOCK_CONSOLE_URL is not set")
    async with AsyncExitStack() as opened:
        providers = [Provider(one, timeout=settings.provider_timeout) for one in settings.providers]
        for provider in providers:
            opened.push_async_callback(provider.close)
        yield SignInServices(settings.url, mail, tuple(providers), settings.operators_second_factor)
