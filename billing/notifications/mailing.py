"""Sends mail through an SMTP server, one message to one recipient at a time."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid, parseaddr
from typing import Literal

from billing.notifications.errors import MailNotSent
from billing.notifications.messages import Message

Security = Literal["starttls", "tls", "none"]


class Mailer:
    """A client of one SMTP server. `trusted` verifies its certificate; None: the system's authorities."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        sender: str,
        security: Security = "starttls",
        user: str = "",
        password: str = "",
        timeout: float = 10.0,
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._sender = sender
        self._security = security
        self._user = user
        self._password = password
        self._timeout = timeout
        self._trusted = trusted

    async def send(self, recipient: str, message: Message, reference: str) -> None:
        """Sends a message. The same `reference` gives a repeated message the same Message-ID.

        Raises MailNotSent.
        """
        domain = parseaddr(self._sender)[1].rpartition("@")[2] or "localhost"
        mail = EmailMessage()
        try:
            mail["From"] = self._sender
            mail["To"] = recipient
            mail["Subject"] = message.subject
        except ValueError as error:
            raise MailNotSent("the address cannot be written to", for_good=True) from error
        mail["Date"] = formatdate()
        mail["Message-ID"] = f"<{reference}@{domain}>" if reference else make_msgid(domain=domain)
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.text)
        mail.add_alternative(message.html, subtype="html")
        try:
            await asyncio.to_thread(self._send, mail)
        except smtplib.SMTPRecipientsRefused as error:
            code, reply = next(iter(error.recipients.values()))
            raise MailNotSent(_reply(code, reply), for_good=code >= 500) from error
        except smtplib.SMTPNotSupportedError as error:
            raise MailNotSent(str(error)[:200], for_good=False) from error
        except smtplib.SMTPResponseException as error:
            for_good = error.smtp_code >= 500 and not isinstance(error, smtplib.SMTPAuthenticationError)
            raise MailNotSent(_reply(error.smtp_code, error.smtp_error), for_good) from error
        except (smtplib.SMTPException, OSError) as error:
            raise MailNotSent("the mail server cannot be reached", for_good=False) from error

    def _send(self, mail: EmailMessage) -> None:
        if self._security == "tls":
            context = self._trusted or ssl.create_default_context()
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                self._host, self._port, timeout=self._timeout, context=context
            )
        else:
            server = smtplib.SMTP(self._host, self._port, timeout=self._timeout)
        with server:
            if self._security == "starttls":
                server.starttls(context=self._trusted or ssl.create_default_context())
            if self._user:
                server.login(self._user, self._password)
            server.send_message(mail)


def _reply(code: int, reply: bytes | str) -> str:
    words = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    return f"the mail server said {code} {words}"[:200]
