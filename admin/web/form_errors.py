"""Collects validation errors of a form by field.

Services raise a ValueError that begins with the field's name, or an error that the API's error mapping
knows; both become a message beside the field.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from admin.formatting import sentence
from admin.services import ErrorMapping

FORM = "form"
"""The key of errors that are about no single field."""
_NAMED = re.compile(r"([a-z_]+)(:? )")


class FieldError(Exception):
    """What a page itself has against a field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


class FormErrors(dict[str, str]):
    """Words by field; "" where there is nothing to say."""

    def __missing__(self, field: str) -> str:
        return ""


NO_ERRORS = FormErrors()


def expected_errors(error_mapping: ErrorMapping) -> tuple[type[Exception], ...]:
    """What a form's page answers with the form: anything else is the frame's to tell."""
    return (FieldError, ValueError, *error_mapping.known)


def explain(
    error: Exception,
    fields: Collection[str],
    error_mapping: ErrorMapping,
    parameters: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, FormErrors]:
    """Returns the status, and the message beside the one of `fields` that it is about. `parameters`: those of
    the API that have another name in the form. Errors of the service are raised again.
    """
    if isinstance(error, FieldError):
        return 422, _beside(error.field, error.message, fields)
    if isinstance(error, error_mapping.known):
        status, envelope = error_mapping.describe(error)
        if status >= 500:
            raise error
        told = envelope["error"]
        param = told.get("param")
        return status, _beside(parameters.get(param or "", param), str(told["message"]), fields)
    found = _NAMED.match(str(error))
    if found is None or found[1] not in fields:
        return 422, _beside(None, sentence(str(error)), fields)
    rest = str(error)[found.end() :]
    message = rest if found[2] == ": " else f"This {rest}"
    return 422, _beside(found[1], sentence(message), fields)


def _beside(field: str | None, message: str, fields: Collection[str]) -> FormErrors:
    return FormErrors({field if field is not None and field in fields else FORM: message})
