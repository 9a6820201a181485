"""Reads a batch's input line by line from the object store, in bounded memory, and removes inputs of batches
that have ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import NamedTuple

from adapters.files.errors import FileNotFound
from adapters.files.repository import FileRepository
from adapters.storage.objects import ObjectStore
from batches.models import Batch
from batches.repository import BatchLeases
from db.session import EVERY_TENANT, Database

BLOCK = 1024 * 1024
"""Bytes that are read at once: no connection to the store stays open while lines run."""
_CLEANED = 100


class InputLine(NamedTuple):
    number: int
    """From 1; blank lines count, but are left out."""
    content: bytes | None
    """None: it is longer than allowed."""


async def require_copy(database: Database, store: ObjectStore, batch: Batch) -> None:
    """Copies the input file, unless that has been done. Raises FileNotFound: it has been deleted before."""
    assert batch.input_key is not None
    if await store.head(batch.input_key) is not None:
        return
    async with database.read(batch.tenant_id) as session:
        file = await FileRepository(session, batch.tenant_id).file(batch.input_file_id, datetime.now(UTC))
    if file is None:
        raise FileNotFound(batch.input_file_id)
    await store.copy(file.object_key, batch.input_key)


async def lines_of(
    store: ObjectStore, key: str, size: int, max_line: int, *, block: int = BLOCK
) -> AsyncIterator[InputLine]:
    """Yields the lines of an object of `size` bytes. Raises StorageUnavailable, ObjectNotFound."""
    number, tail, too_long = 0, b"", False
    for start in range(0, size, block):
        data = b"".join([piece async for piece in store.get(key, start=start, length=block)])
        *ended, rest = data.split(b"\n")
        for part in ended:
            number += 1
            line, tail = tail + part, b""
            if too_long or len(line) > max_line:
                yield InputLine(number, None)
            elif line.strip():
                yield InputLine(number, line)
            too_long = False
        tail += rest
        if len(tail) > max_line:
            tail, too_long = b"", True
    if too_long:
        yield InputLine(number + 1, None)
    elif tail.strip():
        yield InputLine(number + 1, tail)


async def remove_ended_inputs(database: Database, store: ObjectStore) -> int:
    """Removes copies of inputs that no batch needs any more; returns how many. Raises StorageUnavailable,
    DatabaseUnavailable.
    """
    async with database.read(EVERY_TENANT) as session:
        ended = await BatchLeases(session).ended_inputs(_CLEANED)
    if not ended:
        return 0
    for _, key in ended:
        assert key is not None, "they are those that have one"
        await store.delete(key)
    async with database.write(EVERY_TENANT) as session:
        await BatchLeases(session).forget_inputs([batch_id for batch_id, _ in ended])
    return len(ended)
