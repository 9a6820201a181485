"""Composes and sends the console's emails: invitations and password resets.

Links lead to the configured address, never to one that a request named. A link's token stands behind its #,
so that it appears in no server's logs.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from billing.notifications.mailing import Mailer
from billing.notifications.messages import Message


@dataclass(frozen=True)
class ConsoleMail:
    """`console`: where the console is, as `https://rootstock.example/console`."""

    mailer: Mailer
    console: str

    async def invite(
        self, email: str, token: str, *, organisation: str, role: str, inviter: str, until: str
    ) -> None:
        """Raises MailNotSent."""
        lines = [
            f"{inviter} invited you to join {organisation} as {role}.",
            f"To accept, open this link and choose a password. It can be used once and expires {until} UTC:",
            f"{self.console}/join#{token}",
            "If you didn't expect this invitation, you can ignore this email.",
        ]
        await self.mailer.send(email, _message(f"You're invited to join {organisation}", lines), "")

    async def reset(self, email: str, token: str, *, until: str) -> None:
        """Raises MailNotSent."""
        lines = [
            "We received a request to reset the password of your account.",
            f"To choose a new password, open this link. It can be used once and expires {until} UTC:",
            f"{self.console}/reset#{token}",
            "If you didn't request this, you can ignore this email. Your password won't change.",
        ]
        await self.mailer.send(email, _message("Reset your password", lines), "")


def _message(subject: str, lines: list[str]) -> Message:
    """The same as text and as HTML; no header takes a line break."""
    subject = " ".join("".join(c if c.isprintable() else " " for c in subject).split())[:200]
    paragraphs = "".join(f"<p>{_linked(line)}</p>" for line in lines)
    return Message(
        subject,
        "\n\n".join(lines) + "\n",
        f"<!doctype html><html><body><h1>{html.escape(subject)}</h1>{paragraphs}</body></html>",
    )


def _linked(line: str) -> str:
    text = html.escape(line)
    is_link = line.startswith(("https://", "http://")) and " " not in line
    return f'<a href="{text}">{text}</a>' if is_link else text
