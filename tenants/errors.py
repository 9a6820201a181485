"""Defines the errors of tenants, users, keys and limits. `api.error_mapping` maps them to HTTP responses."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from tenants.context import TenantContext
from tenants.limits.kinds import Limit, Metric, RateView


class TenantError(Exception):
    """Base class of the errors below."""


class InvalidApiKey(TenantError):
    """The key is unknown, malformed, revoked, expired, or belongs to a disabled tenant; clients cannot see
    which. Never carries the key.
    """

    def __init__(self) -> None:
        super().__init__("the API key is not valid")


class AddressNotAllowed(TenantError):
    """The key is valid, but the client's address is outside its networks."""

    def __init__(self, address: str | None, caller: TenantContext | None = None) -> None:
        super().__init__(f"this API key may not be used from {address or 'an unknown address'}")
        self.address = address
        self.caller = caller


class AccountSuspended(TenantError):
    """The key is valid, but its organization is suspended for an unpaid invoice."""

    def __init__(self) -> None:
        super().__init__(
            "Your organization is suspended because a payment failed. Please pay the open invoice: an owner "
            "finds it in the console under billing, or at POST /v1/organization/billing/portal."
        )


class RightsNotHeld(TenantError):
    """The actor tried to grant rights that it does not hold."""

    def __init__(self, field: str, rights: Iterable[str]) -> None:
        self.field = field
        self.rights = sorted(rights)
        super().__init__(f"{field}: you cannot give {', '.join(self.rights)}, which you do not hold")


class OwnersOnly(TenantError):
    """Only owners can appoint, demote, disable and remove owners."""

    def __init__(self) -> None:
        super().__init__("only an owner of the organization may appoint, demote, disable or remove an owner")


class InviteInvalid(TenantError):
    """The invitation is unknown, accepted, deleted or expired; clients cannot see which. Never carries the
    token.
    """

    def __init__(self) -> None:
        super().__init__("the invitation is invalid, expired or already used: ask for a new one")


class InviteAddressMismatch(TenantError):
    """The identity provider's email address is unverified, or differs from the invited address."""

    def __init__(self) -> None:
        super().__init__("the invited email address differs from the one your identity provider verified")


class WrongPassword(TenantError):
    """The password is not the signed-in user's."""

    def __init__(self) -> None:
        super().__init__("this is not your password")


class WrongCode(TenantError):
    """The second-factor code is wrong, expired or already used."""

    def __init__(self) -> None:
        super().__init__("this code is wrong, expired or already used")


class NoSecondFactor(TenantError):
    """The user has no second factor."""

    def __init__(self) -> None:
        super().__init__("there is no second factor")


class SecondFactorConflict(TenantError):
    """The second factor cannot be added or removed now; the message says why."""


class SecondFactorMissing(TenantError):
    """A user without a second factor cannot require one of others."""

    def __init__(self) -> None:
        super().__init__("set up a second factor of your own before you require one of all members")


class ResetInvalid(TenantError):
    """The reset token is unknown, used or expired; clients cannot see which. Never carries the token."""

    def __init__(self) -> None:
        super().__init__("this link is invalid, expired or already used: request a new one")


class IdentityNotFound(TenantError):
    """The user has no identity with this id."""

    def __init__(self, identity_id: str) -> None:
        super().__init__(f"there is no identity {identity_id!r}")
        self.identity_id = identity_id


class IdentityTaken(TenantError):
    """The identity is linked to another user."""

    def __init__(self, issuer: str) -> None:
        super().__init__("this identity is already linked to another user")
        self.issuer = issuer


class LastSignInMethod(TenantError):
    """A user without a password cannot remove their only identity."""

    def __init__(self) -> None:
        super().__init__("this identity is your only way to sign in: set a password first")


class TenantNotFound(TenantError):
    def __init__(self, tenant: str) -> None:
        super().__init__(f"there is no tenant {tenant!r}")
        self.tenant = tenant


class PlanNotFound(TenantError):
    def __init__(self, plan: str) -> None:
        super().__init__(f"there is no plan {plan!r}")
        self.plan = plan


class PlanChanged(TenantError):
    """The plan was changed after the caller read it."""

    def __init__(self, plan: str) -> None:
        super().__init__(f"the plan {plan!r} was changed meanwhile: reload it and try again")
        self.plan = plan


class KeyNotFound(TenantError):
    """The tenant has no key with this id."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no API key {key_id!r}")
        self.key_id = key_id


class ProjectNotFound(TenantError):
    """The tenant has no project with this id."""

    def __init__(self, project_id: str) -> None:
        super().__init__(f"there is no project {project_id!r}")
        self.project_id = project_id


class UserNotFound(TenantError):
    """The tenant, or the project, has no user with this id."""

    def __init__(self, user_id: str) -> None:
        super().__init__(f"there is no user {user_id!r}")
        self.user_id = user_id


class ServiceAccountNotFound(TenantError):
    """The project has no service account with this id."""

    def __init__(self, account_id: str) -> None:
        super().__init__(f"there is no service account {account_id!r}")
        self.account_id = account_id


class InviteNotFound(TenantError):
    """The tenant has no invitation with this id."""

    def __init__(self, invite_id: str) -> None:
        super().__init__(f"there is no invitation {invite_id!r}")
        self.invite_id = invite_id


class KeyNotActive(TenantError):
    """The key is revoked, expired or already replaced, so it cannot be changed."""

    def __init__(self, key_id: str, state: str) -> None:
        super().__init__(f"the API key {key_id!r} is {state}")
        self.key_id = key_id
        self.state = state


class ProjectArchived(TenantError):
    """An archived project cannot be changed."""

    def __init__(self, project_id: str) -> None:
        super().__init__(f"the project {project_id!r} is archived")
        self.project_id = project_id


class DefaultProjectKept(TenantError):
    """The default project cannot be archived."""

    def __init__(self, project_id: str) -> None:
        super().__init__(f"the project {project_id!r} is the organization's default and cannot be archived")
        self.project_id = project_id


class InviteAccepted(TenantError):
    """An accepted invitation cannot be deleted: remove the user instead."""

    def __init__(self, invite_id: str) -> None:
        super().__init__(f"the invitation {invite_id!r} was accepted already")
        self.invite_id = invite_id


class LastOwner(TenantError):
    """The last owner of an organization cannot be removed, disabled or demoted."""

    def __init__(self, user_id: str) -> None:
        super().__init__(f"the user {user_id!r} is the organization's last owner")
        self.user_id = user_id


class OwnAccount(TenantError):
    """A user cannot disable their own account."""

    def __init__(self, user_id: str) -> None:
        super().__init__(f"the user {user_id!r} cannot disable their own account: another member has to")
        self.user_id = user_id


class NameTaken(TenantError):
    """The name or email address is in use."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"the {what} {name!r} is taken")
        self.what = what
        self.name = name


class LimitReached(TenantError):
    """A request exceeds a limit. Carries how far the caller is from the tightest limits."""

    def __init__(
        self,
        limit: Limit,
        message: str,
        requests: RateView | None = None,
        tokens: RateView | None = None,
        local: bool = False,
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.requests = requests
        self.tokens = tokens
        self.local = local
        """Whether this process's share of the limit was exceeded, because Redis is unreachable."""


class RateLimited(LimitReached):
    """The rate limit is exceeded; the same request passes after `retry_after` seconds, unless others take the
    room first.
    """

    def __init__(
        self,
        limit: Limit,
        retry_after: float,
        requests: RateView | None = None,
        tokens: RateView | None = None,
        local: bool = False,
    ) -> None:
        message = (
            f"Rate limit reached: {described(limit)}. Please try again in {max(retry_after, 0.001):.3f} s."
        )
        super().__init__(limit, message, requests, tokens, local)
        self.retry_after = retry_after


class QuotaExhausted(LimitReached):
    """The quota is exhausted until `resets_at`; None if the request alone exceeds the limit and so never
    passes.
    """

    retry_after: float | None = None

    def __init__(
        self,
        limit: Limit,
        resets_at: datetime | None,
        requests: RateView | None = None,
        tokens: RateView | None = None,
        local: bool = False,
    ) -> None:
        if resets_at is None:
            message = f"This request alone may take more than the limit allows: {described(limit)}."
        else:
            message = (
                f"You exceeded your current quota: {described(limit)}. It resets at {resets_at.isoformat()}."
            )
        super().__init__(limit, message, requests, tokens, local)
        self.resets_at = resets_at


class BalanceExhausted(QuotaExhausted):
    """The prepaid balance does not cover what the request can cost. It never resets: the tenant has to top it
    up.
    """

    def __init__(
        self, limit: Limit, requests: RateView | None = None, tokens: RateView | None = None
    ) -> None:
        LimitReached.__init__(
            self,
            limit,
            "You exceeded your current quota: your organization's prepaid balance does not cover what this "
            "request may cost. Top it up, on the console's billing page or through "
            "/v1/organization/billing, or ask for fewer tokens ('max_tokens').",
            requests,
            tokens,
        )
        self.resets_at = None


class QuotaUnavailable(TenantError):
    """A budget's usage cannot be looked up, so requests that count towards it are refused."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the budgets that this request counts towards cannot be looked up at the moment")
        self.retry_after = retry_after


class LimitNotFound(TenantError):
    """The tenant has no such limit."""

    def __init__(self, scope: str, scope_id: str, model: str, metric: str) -> None:
        super().__init__(f"no limit of {metric} is set for {scope} {scope_id[:80]!r}, model {model[:80]!r}")
        self.scope = scope
        self.scope_id = scope_id
        self.model = model
        self.metric = metric


_WORDS = {
    Metric.SPEND_PER_MONTH: "micro-USD of spend per month",
    Metric.PREPAID_BALANCE: "micro-USD of prepaid balance",
}


def described(limit: Limit) -> str:
    """Returns the limit as error messages name it."""
    model = f", model {limit.model}" if limit.model else ""
    words = _WORDS.get(limit.metric) or limit.metric.replace("_", " ")
    return f"{limit.amount} {words} for {limit.scope} {limit.scope_id}{model}"
