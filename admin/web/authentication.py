"""Resolves a browser's session to the signed-in user, or to an operator acting for one."""

from __future__ import annotations

import time
from dataclasses import replace

from admin.services import ConsoleServices
from admin.web.principals import Operator, Principal, TenantUser
from admin.web.sessions import OpenSession, Session, SessionStore
from billing.invoices.accounts import BillingAccountView as BillingAccount
from tenants.accounts import Membership
from tenants.errors import TenantNotFound, UserNotFound


class Authenticator:
    """Looks up accounts on every request, so that a removed user is signed out at once."""

    def __init__(self, services: ConsoleServices, sessions: SessionStore) -> None:
        self._sessions = sessions
        self._accounts = services.accounts
        self._impersonations = services.operation.impersonations
        self._billing_accounts = services.billing.accounts
        self._operators_need_factor = services.sign_in.operators_second_factor

    async def principal_of(self, opened: OpenSession) -> Principal | None:
        """Returns None if the session is anonymous, or its user may no longer sign in."""
        session = opened.session
        if session.user_id is None or session.tenant_id is None:
            return None
        account = await self._accounts.find(session.user_id, session.tenant_id)
        # Removed since, or with another password: the session must not outlive that.
        if account is None or _is_over(session, account):
            await self._sessions.end(opened.id)
            return None
        opened = await self._sessions.with_role(opened, account.role)
        if not account.is_operator:
            return TenantUser(account, opened, overdue=await self._overdue(account))
        if self._operators_need_factor:
            account = replace(account, needs_second_factor=True)
        taken = session.impersonation
        if taken is None or taken.ends_at <= time.time():
            return Operator(account, opened)
        try:
            theirs = await self._impersonations.account(taken.tenant_id, taken.user_id)
        except (TenantNotFound, UserNotFound):  # deleted meanwhile
            return Operator(account, opened)
        return TenantUser(theirs, opened, account, await self._overdue(theirs))

    async def _overdue(self, account: Membership) -> BillingAccount | None:
        if account.billing_state == "active":
            return None
        return await self._billing_accounts.find(account.tenant_id)


def _is_over(session: Session, account: Membership) -> bool:
    return account.sessions_from is not None and session.started_at < account.sessions_from.timestamp()
