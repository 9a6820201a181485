"""What the console mails: invitations, and leave to choose another password.

Owns the words, and that a link leads to the address the operator set, never to one that a request named. What
a link is good for stands behind its #, so that no server on the way has it in its logs.
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
            f"{inviter} invites you to {organisation}, as {role}.",
            f"Open this link to choose a password and come in. It is good for one person, until {until} UTC:",
            f"{self.console}/join#{token}",
            "If you know nothing of this, you need do nothing.",
        ]
        await self.mailer.send(email, _message(f"You are invited to {organisation}", lines), "")

    async def reset(self, email: str, token: str, *, until: str) -> None:
        """Raises MailNotSent."""
        lines = [
            "Somebody, most likely you, asked for another password to your account.",
            f"Open this link to choose one. It is good once, until {until} UTC:",
            f"{self.console}/reset#{token}",
            "If it was not you, you need do nothing: your password stays as it is.",
        ]
        await self.mailer.send(email, _message("Choose another password", lines), "")


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
