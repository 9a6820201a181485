"""What signing in to the console needs beside accounts, from settings: mail, and other providers.

Owns that it is put together, and closed.
"""

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
    """Nobody is asked anything yet: a provider that is away keeps no process from serving."""
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
