"""Reads forms that need no signed-in user, with the session they came with.

A rejected form leaves the session unchanged: it neither ends nor rotates.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from admin.web import security
from admin.web.authorization import require_same_origin
from admin.web.forms import read_form
from admin.web.sessions import OpenSession, SessionStore


@dataclass(frozen=True)
class FormSubmission:
    """A form, and whose browser sent it."""

    fields: dict[str, str]
    opened: OpenSession | None
    """The session it came with."""

    @property
    def accepted(self) -> OpenSession | None:
        """That session, if the form is of a page of it."""
        token = self.fields.get("csrf_token", "")
        return self.opened if self.opened is not None and self.opened.session.accepts(token) else None


async def read_submission(request: Request, sessions: SessionStore) -> FormSubmission:
    """Raises `HTTPException`, 403 for a form of another site."""
    require_same_origin(request)
    return FormSubmission(await read_form(request), await sessions.peek(security.session_id(request)))
