"""Lists what signing in uses besides accounts: identity providers, email, and the policy for operators."""

from __future__ import annotations

from dataclasses import dataclass

from admin.mail import ConsoleMail
from admin.sign_in.oidc.provider import Provider


@dataclass(frozen=True)
class SignInServices:
    url: str = ""
    """Where browsers find the service, as `https://rootstock.example`. Empty: wherever they say they do."""
    mail: ConsoleMail | None = None
    providers: tuple[Provider, ...] = ()
    operators_second_factor: bool = True
    """Whether operators have to have one."""
