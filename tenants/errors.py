"""What can be wrong with tenants, users and keys. Errors carry data; what HTTP makes of them is the API's
business.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from tenants.limits.kinds import Limit, Metric, RateView


class TenantError(Exception):
    """Any of the below."""


class InvalidApiKey(TenantError):
    """Unknown, malformed, revoked, expired, or of a disabled tenant: callers are not told which. Never
    carries the key.
    """

    def __init__(self) -> None:
        super().__init__("the API key is not valid")


class AddressNotAllowed(TenantError):
    """The key is good, and not to be used from where it was."""

    def __init__(self, address: str | None) -> None:
        super().__init__(f"this API key may not be used from {address or 'an unknown address'}")
        self.address = address


class AccountSuspended(TenantError):
    """The key is good, and what its organization owes was not paid."""

    def __init__(self) -> None:
        super().__init__(
            "Your organization is suspended because a payment failed. Please pay the open invoice: an owner "
            "finds it in the console under billing, or at POST /v1/organization/billing/portal."
        )


class NotHeld(TenantError):
    """Somebody would give rights away that they do not have."""

    def __init__(self, field: str, rights: Iterable[str]) -> None:
        self.field = field
        self.rights = sorted(rights)
        super().__init__(f"{field}: you cannot give {', '.join(self.rights)}, which you do not hold")


class OwnersOnly(TenantError):
    """Owners alone appoint, demote, disable and remove owners."""

    def __init__(self) -> None:
        super().__init__("only an owner of the organization may appoint, demote, disable or remove an owner")


class InviteInvalid(TenantError):
    """Unknown, accepted, deleted, expired: whoever holds such a token is not told which. Never carries it."""

    def __init__(self) -> None:
        super().__init__("the invitation is not valid, or not any more")


class InviteNotTheirs(TenantError):
    """Whom another provider vouches for does not have the address that was invited, or not for certain."""

    def __init__(self) -> None:
        super().__init__("the invitation is for another address than the one that was vouched for")


class WrongPassword(TenantError):
    """Not the password of whoever has signed in."""

    def __init__(self) -> None:
        super().__init__("this is not your password")


class WrongCode(TenantError):
    """No code of a second factor that is good now: another, an old one, or one that was used."""

    def __init__(self) -> None:
        super().__init__("this code is not valid, or not any more")


class NoSecondFactor(TenantError):
    """The user has none."""

    def __init__(self) -> None:
        super().__init__("there is no second factor")


class SecondFactorKept(TenantError):
    """A second factor stays as it is."""


class SecondFactorMissing(TenantError):
    """Who asks others for a second factor has one."""

    def __init__(self) -> None:
        super().__init__("set up a second factor of your own before you ask everybody for one")


class ResetInvalid(TenantError):
    """Unknown, used, expired: whoever holds such a token is not told which. Never carries it."""

    def __init__(self) -> None:
        super().__init__("this link is not valid, or not any more")


class IdentityNotFound(TenantError):
    """No such identity of this user."""

    def __init__(self, identity_id: str) -> None:
        super().__init__(f"there is no identity {identity_id!r}")
        self.identity_id = identity_id


class IdentityTaken(TenantError):
    """It is another user's already."""

    def __init__(self, issuer: str) -> None:
        super().__init__("this identity lets somebody else in already")
        self.issuer = issuer


class LastWayIn(TenantError):
    """Without a password, the only identity of a user stays."""

    def __init__(self) -> None:
        super().__init__("without a password you could not sign in any more: choose one first")


class TenantNotFound(TenantError):
    def __init__(self, tenant: str) -> None:
        super().__init__(f"there is no tenant {tenant!r}")
        self.tenant = tenant


class PlanNotFound(TenantError):
    def __init__(self, plan: str) -> None:
        super().__init__(f"there is no plan {plan!r}")
        self.plan = plan


class PlanChanged(TenantError):
    """Somebody else changed the plan after whoever changes it now had looked at it."""

    def __init__(self, plan: str) -> None:
        super().__init__(f"the plan {plan!r} was changed meanwhile: look at it again")
        self.plan = plan


class KeyNotFound(TenantError):
    """No such key in this tenant, whatever other tenants have."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no API key {key_id!r}")
        self.key_id = key_id


class ProjectNotFound(TenantError):
    """No such project in this tenant."""

    def __init__(self, project_id: str) -> None:
        super().__init__(f"there is no project {project_id!r}")
        self.project_id = project_id


class UserNotFound(TenantError):
    """No such user in this tenant, or in this project of it."""

    def __init__(self, user_id: str) -> None:
        super().__init__(f"there is no user {user_id!r}")
        self.user_id = user_id


class ServiceAccountNotFound(TenantError):
    """No such service account in this project."""

    def __init__(self, account_id: str) -> None:
        super().__init__(f"there is no service account {account_id!r}")
        self.account_id = account_id


class InviteNotFound(TenantError):
    """No such invitation in this tenant."""

    def __init__(self, invite_id: str) -> None:
        super().__init__(f"there is no invitation {invite_id!r}")
        self.invite_id = invite_id


class KeyNotActive(TenantError):
    """The key is revoked, expired, or replaced already: nothing of it can be changed."""

    def __init__(self, key_id: str, state: str) -> None:
        super().__init__(f"the API key {key_id!r} is {state}")
        self.key_id = key_id
        self.state = state


class ProjectArchived(TenantError):
    """What is archived stays as it is."""

    def __init__(self, project_id: str) -> None:
        super().__init__(f"the project {project_id!r} is archived")
        self.project_id = project_id


class DefaultProjectKept(TenantError):
    """The project that keys go to unless told otherwise cannot be archived."""

    def __init__(self, project_id: str) -> None:
        super().__init__(f"the project {project_id!r} is the organization's default and cannot be archived")
        self.project_id = project_id


class InviteAccepted(TenantError):
    """An invitation that was accepted is a user now: remove that."""

    def __init__(self, invite_id: str) -> None:
        super().__init__(f"the invitation {invite_id!r} was accepted already")
        self.invite_id = invite_id


class LastOwner(TenantError):
    """Somebody must be left who may do everything."""

    def __init__(self, user_id: str) -> None:
        super().__init__(f"the user {user_id!r} is the organization's last owner")
        self.user_id = user_id


class OwnAccount(TenantError):
    """Nobody shuts themselves out."""

    def __init__(self, user_id: str) -> None:
        super().__init__(f"the user {user_id!r} cannot disable their own account: another member has to")
        self.user_id = user_id


class NameTaken(TenantError):
    """Another row holds the name, or a user's email."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"the {what} {name!r} is taken")
        self.what = what
        self.name = name


class LimitReached(TenantError):
    """A limit does not let a request pass. Carries how far the caller is from the tightest ones."""

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
        """Judged by this process's share of the limit, because what is shared cannot be asked."""


class RateLimited(LimitReached):
    """Not now: the same request passes after `retry_after` seconds, unless others come before."""

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
    """Not before `resets_at`, or, where that is None, never: the request alone asks for more than the limit
    is.
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
    """What was paid in and is not used does not cover what the request may cost. It never resets: pay."""

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
    """What is used of a budget cannot be looked up, so nothing is let through that would count to it."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the budgets that this request counts to cannot be looked up at the moment")
        self.retry_after = retry_after


class LimitNotFound(TenantError):
    """No such limit was set for this tenant."""

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
    """As a message names it."""
    model = f", model {limit.model}" if limit.model else ""
    words = _WORDS.get(limit.metric) or limit.metric.replace("_", " ")
    return f"{limit.amount} {words} for {limit.scope} {limit.scope_id}{model}"
