"""Forms that anybody may send, signed in or not, as they arrive.

Owns that a form which is refused leaves the session it came with as it was: neither ended nor given another
id, whoever sent the form. Refuses to know what the forms are for.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from admin.web import security
from admin.web.forms import read_form
from admin.web.sessions import Opened, SessionStore

FOREIGN = "This form was sent from another site."


@dataclass(frozen=True)
class Posted:
    """A form, and whose browser sent it."""

    fields: dict[str, str]
    opened: Opened | None
    """The session it came with."""

    @property
    def accepted(self) -> Opened | None:
        """That session, if the form is of a page of it."""
        token = self.fields.get("csrf_token", "")
        return self.opened if self.opened is not None and self.opened.session.accepts(token) else None


async def read_posted(request: Request, sessions: SessionStore) -> Posted:
    """Raises `HTTPException`, 403 for a form of another site."""
    if not security.is_same_origin(request):
        raise HTTPException(403, FOREIGN)
    return Posted(await read_form(request), await sessions.peek(security.session_id(request)))
