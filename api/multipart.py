"""Parses multipart/form-data as it arrives: small fields into memory, the file as a stream to a callback.

Errors name the field. A file is never held in memory: the next bytes are read only once the callback has
taken the previous ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fastapi import Request
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from api.errors import ClientGone, InvalidValue, UnsupportedMediaType, UnsupportedParameter

T = TypeVar("T")

MAX_FIELD_BYTES = 4096
MAX_NAME = 200
_MAX_PARTS = 16


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    fields: dict[str, str]
    filename: str | None
    """None if the file's part has no filename."""
    file: T
    """What the callback returned for the file."""


@dataclass(slots=True)
class _Part:
    """Start of a part, with the name and filename from its headers."""

    name: str
    filename: str | None


@dataclass(slots=True)
class _Headers:
    """Headers of the current part, while they are parsed."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    name: bytes = b""
    value: bytes = b""


_END = object()
"""Marks the end of a part."""
_LAST = object()
"""Marks the end of the form."""


async def read_form(
    request: Request,
    file_field: str,
    known: Container[str],
    take: Callable[[dict[str, str], str | None, AsyncIterator[bytes]], Awaitable[T]],
    discard: Callable[[T], Awaitable[None]],
) -> Form[T]:
    """Returns the form, whose field `file_field` is a file.

    Args:
        known: names of the other fields that are allowed, before or after the file.
        take: receives the fields before the file, the filename, and the file's bytes.
        discard: undoes `take` if what follows the file is invalid.

    Raises:
        UnsupportedMediaType, InvalidValue, UnsupportedParameter: naming the field.
        ClientGone: the client disconnected before the end of the body.
    """
    body = _Body(request, file_field)
    fields: dict[str, str] = {}
    taken: list[tuple[str | None, T]] = []
    try:
        async for part in body.parts():
            if part.name == file_field:
                if taken:
                    raise InvalidValue(f"'{file_field}' was given more than once.", file_field)
                taken.append((part.filename, await take(dict(fields), part.filename, body.data())))
            elif part.name not in known:
                raise UnsupportedParameter(f"Unsupported parameter: '{part.name}'.", part.name)
            elif part.name in fields:
                raise InvalidValue(f"'{part.name}' was given more than once.", part.name)
            else:
                fields[part.name] = await body.text(part.name)
        if not taken:
            raise InvalidValue(f"Missing required parameter: '{file_field}'.", file_field)
    except BaseException:
        for _, made in taken:
            await discard(made)
        raise
    filename, made = taken[0]
    return Form(fields, filename, made)


class _Body:
    """Reads the body and parses it as its events are consumed."""

    def __init__(self, request: Request, file_field: str) -> None:
        kind, options = parse_options_header(request.headers.get("content-type"))
        if kind != b"multipart/form-data":
            shown = kind.decode("latin-1")[:100]
            raise UnsupportedMediaType(f"Send 'content-type: multipart/form-data', not '{shown}'.")
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise InvalidValue("The header 'content-type' names no boundary.", "content-type")
        self._request = request
        self._file_field = file_field
        self._events: deque[object] = deque()
        self._headers = _Headers()
        self._complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": lambda data, start, end: self._events.append(data[start:end]),
                    "on_part_end": lambda: self._events.append(_END),
                    "on_end": lambda: self._events.append(_LAST),
                },
            )
        except FormParserError as error:
            raise InvalidValue(f"The form cannot be read: {error}.", "content-type") from None

    async def parts(self) -> AsyncIterator[_Part]:
        for _ in range(_MAX_PARTS):
            event = await self._next()
            if event is _LAST:
                return
            assert isinstance(event, _Part), "a part's data was not read to its end"
            yield event
        raise InvalidValue(f"The form has more than {_MAX_PARTS} parts.", self._file_field)

    async def data(self) -> AsyncIterator[bytes]:
        """Yields the data of the current part."""
        while (event := await self._next()) is not _END:
            assert isinstance(event, bytes)
            yield event

    async def text(self, name: str) -> str:
        value = b""
        async for chunk in self.data():
            value += chunk
            if len(value) > MAX_FIELD_BYTES:
                raise InvalidValue(f"'{name}' is longer than {MAX_FIELD_BYTES} bytes.", name)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidValue(f"'{name}' is not UTF-8.", name) from None

    async def _next(self) -> object:
        while not self._events and not self._complete:
            message = await self._request.receive()
            if message["type"] != "http.request":
                raise ClientGone("The client hung up while sending the form.")
            try:
                self._parser.write(message.get("body", b""))
            except FormParserError as error:
                raise InvalidValue(f"The form cannot be read: {error}.", self._file_field) from None
            self._complete = not message.get("more_body", False)
        if not self._events:
            raise InvalidValue("The form ends before its last boundary.", self._file_field)
        return self._events.popleft()

    def _begin(self) -> None:
        self._headers = _Headers()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._headers.name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._headers.value += data[start:end]

    def _header_end(self) -> None:
        headers = self._headers
        headers.values[headers.name.lower()] = headers.value
        headers.name = headers.value = b""

    def _headers_end(self) -> None:
        disposition = self._headers.values.get(b"content-disposition", b"").decode("latin-1")
        _, options = parse_options_header(disposition)
        name = _text(options.get(b"name", b""))
        if not name or len(name) > MAX_NAME:
            raise InvalidValue("A part of the form has no name.", self._file_field)
        filename = options.get(b"filename")
        self._events.append(_Part(name, None if filename is None else _text(filename)))


def _text(option: bytes) -> str:
    return option.decode("utf-8", "replace")
