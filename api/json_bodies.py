"""Reads JSON bodies into strict msgspec structs, with errors that name the field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar, overload

import msgspec
from starlette.requests import Request

from api.edge import header_of
from api.errors import ApiError, ClientGone, InvalidValue, UnsupportedMediaType, UnsupportedParameter

RequestT = TypeVar("RequestT")
NONE: Mapping[str, str] = MappingProxyType({})
_EXACT = 2.0**53
"""Below it, a float represents every integer exactly."""

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at (?:`(?:key|value)` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(
    r"^Object (?P<problem>contains unknown|missing required) field `(?P<field>.*)`$", re.DOTALL
)
_ROOT = re.compile(r"[^.\[]+")


async def read_json(request: Request) -> bytes:
    """Returns the request's body, undecoded.

    Raises:
        UnsupportedMediaType: the body is declared to be something else than JSON in UTF-8.
        ClientGone: the client hung up before the end of the body.
    """
    _check_json(header_of(request, b"content-type", "application/json"))
    message = await request.receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        return body
    parts: list[bytes] = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await request.receive()
    raise ClientGone("The client hung up while sending the request.")


def _check_json(content_type: str) -> None:
    """Raises UnsupportedMediaType."""
    media_type, _, parameters = content_type.partition(";")
    media_type = media_type.strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType(f"Send 'content-type: application/json', not '{media_type[:100]}'.")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"')
        if name.strip().lower() == "charset" and charset.lower() not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(f"JSON must be in UTF-8; charset '{charset[:100]}' is not supported.")


def decode(
    decoder: msgspec.json.Decoder[RequestT],
    body: bytes,
    not_offered: Mapping[str, str] = NONE,
    raw_part: Callable[[RequestT], bytes] = lambda decoded: b"",
) -> RequestT:
    """Returns the decoded body. Integers can be written as 5.0. `not_offered`: fields that are refused as
    unsupported instead of invalid, with the features they stand for. `raw_part`: a part of the body that is
    not decoded here, whose repeated keys are found later.

    Raises InvalidValue or UnsupportedParameter, naming the field.
    """
    try:
        decoded = _read(decoder, body)
        text = body.decode()
        raw = raw_part(decoded).decode()
        if '"' in raw:  # then no string of the body has it inside
            text = text.replace(raw, "{}")
        _UNIQUE_KEYS.raw_decode(text.lstrip())
        return decoded
    except msgspec.ValidationError as error:
        raise _named(str(error), not_offered) from None
    except RecursionError:
        raise InvalidValue("The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidValue(f"The body is not valid JSON: {error}.") from None


def _read(decoder: msgspec.json.Decoder[RequestT], body: bytes) -> RequestT:
    """Decodes the body; if floats are refused, decodes it again with integral floats as integers."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        integral = msgspec.json.encode(_integral(msgspec.json.decode(body)))
        return decoder.decode(integral)


def convert(value: Any, kind: type[RequestT], where: str) -> RequestT:
    """Returns a decoded part of a body as the struct `kind`. `where`: the field that has it. Raises
    InvalidValue or UnsupportedParameter, naming the field.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        inner = _named(str(error), NONE)
    if inner.param is None:
        what = inner.message.removeprefix("The body is invalid: ")
        raise InvalidValue(f"Invalid value for '{where}': {what}", where)
    name = f"{where}.{inner.param}"
    raise type(inner)(inner.message.replace(f"'{inner.param}'", f"'{name}'"), name)


class BodyDecoders:
    """Holds one decoder for each kind of body."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._decoders: dict[type, msgspec.json.Decoder] = {
            kind: msgspec.json.Decoder(kind) for kind in kinds
        }

    def decode(self, kind: type[RequestT], body: bytes) -> RequestT:
        """Raises as `decode` does; `kind` is one of those given."""
        decoder: msgspec.json.Decoder[RequestT] = self._decoders[kind]
        return decode(decoder, body)


@overload
def unix(moment: datetime) -> int: ...
@overload
def unix(moment: datetime | None) -> int | None: ...
def unix(moment: datetime | None) -> int | None:
    """Returns Unix seconds, the format of times in OpenAI's objects."""
    return None if moment is None else int(moment.timestamp())


def _require_unique(pairs: list[tuple[str, Any]]) -> None:
    """Checks that an object has no repeated keys: parsers differ in which one they take. Raises
    InvalidValue.
    """
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            break
        seen.add(key)
    repeated = key[:200].encode(errors="replace").decode()
    raise InvalidValue(f"The key '{repeated}' appears more than once in an object; send it once.", repeated)


_UNIQUE_KEYS = json.JSONDecoder(object_pairs_hook=_require_unique, parse_int=float)
"""Reads what msgspec has decoded again, to find repeated keys: msgspec takes the last one. Integers are
parsed as floats, which accepts any number of digits.
"""


def _integral(value: Any) -> Any:
    """Returns the value with integral floats as integers."""
    if isinstance(value, dict):
        return {name: _integral(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_integral(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value


def _named(text: str, not_offered: Mapping[str, str]) -> ApiError:
    """msgspec's message, such as "Expected `int` <= 128 - at `$.n`", as an error that names the field."""
    if len(text) > 1000:  # an unknown field's name can have any length; the position is at the end
        text = text[:400] + text[-400:]
    located = _WHERE.match(text)
    assert located is not None
    what, path = located["what"], (located["path"] or "").replace("[...]", "")
    refused = next((step for step in _ROOT.findall(path) if step in not_offered), None)
    if refused is not None:
        name = path[: path.index(refused) + len(refused)]
        return UnsupportedParameter(f"{not_offered[refused]} not supported yet: leave '{name}' out.", name)
    field = _FIELD.match(what)
    if field is not None:
        name = f"{path}.{field['field']}" if path else field["field"]
        if field["problem"] == "missing required":
            return InvalidValue(f"Missing required parameter: '{name}'.", name)
        return UnsupportedParameter(f"Unsupported parameter: '{name[:200]}'.", name[:200])
    if not path:
        return InvalidValue(f"The body is invalid: {what[:300]}.")
    return InvalidValue(f"Invalid value for '{path[:200]}': {what[:300]}.", path[:200])
