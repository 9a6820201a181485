"""Describes draft adapters: adapters on a base that guess tokens in the places of placeholders.

As it is trained, a draft adapter is a PEFT folder with a `drafter.json` beside the checkpoint. Packed, it is
an artifact like any other, named by its digest. Which one guesses for an adapter is noted in a file beside
that adapter's artifact: `ab/DIGEST.draft`. It changes how fast the adapter's tokens come and not what they
are, so it is not a part of what the adapter's digest covers. A note also tells engines on other hosts of the
base's own draft adapter, which they fetch as any artifact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from engine.files import replacing
from engine.lora.artifact import READ_BY_ALL, artifact_path
from engine.protocol import AdapterRef

DESCRIPTION_FILE = "drafter.json"
NOTE_SUFFIX = ".draft"
MAX_AHEAD = 64
MAX_NOTE = 4096
"""Bytes of a note, or of a description, that are read."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class DraftAdapterError(ValueError):
    """A draft adapter's description, or the note of one, is missing or wrong."""


class Description(msgspec.Struct, frozen=True):
    """The content of `drafter.json`. Other fields say how it was trained, and are ignored."""

    placeholder_token_id: int
    num_ahead: int

    @classmethod
    def read(cls, folder: Path, vocab_size: int) -> Description:
        """Reads the description in a draft adapter's folder. Raises DraftAdapterError."""
        path = folder / DESCRIPTION_FILE
        try:
            with path.open("rb") as opened:
                found = _descriptions.decode(opened.read(MAX_NOTE))
        except FileNotFoundError:
            raise DraftAdapterError(
                f"{path}: the file is missing: it says {{placeholder_token_id, num_ahead}} of a draft adapter"
            ) from None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DraftAdapterError(f"{path}: {error}") from error
        if not 0 <= found.placeholder_token_id < vocab_size:
            raise DraftAdapterError(
                f"{path}: placeholder_token_id is {found.placeholder_token_id}: name one of the base's "
                f"{vocab_size} tokens"
            )
        if not 1 <= found.num_ahead <= MAX_AHEAD:
            raise DraftAdapterError(f"{path}: num_ahead is {found.num_ahead}: between 1 and {MAX_AHEAD}")
        return found


@dataclass(frozen=True, slots=True)
class DraftAdapter:
    """A packed draft adapter."""

    ref: AdapterRef
    placeholder_id: int
    num_ahead: int
    """Placeholders behind one row that it was trained for, at most."""


@dataclass(frozen=True, slots=True)
class DraftAdapterChoice:
    """Which draft adapter guesses for which adapter."""

    base: DraftAdapter | None = None
    """For the base, and for adapters without one of their own."""
    by_adapter: Mapping[str, DraftAdapter] = field(default_factory=dict)
    """By adapter digest. Others may be added from another thread while the engine runs."""

    def find(self, adapter_digest: str | None) -> DraftAdapter | None:
        """Returns the one for an adapter, or for the base alone."""
        if adapter_digest is None:
            return self.base
        return self.by_adapter.get(adapter_digest, self.base)


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    rank: int
    placeholder_token_id: int
    num_ahead: int


_descriptions, _notes = msgspec.json.Decoder(Description), msgspec.json.Decoder(_Note)


def write_note(artifacts_dir: Path, adapter_digest: str, adapter: DraftAdapter) -> None:
    """Notes which draft adapter guesses for an adapter; replaces an earlier note, atomically."""
    keep_note(artifacts_dir, adapter_digest, encode_note(adapter))


def keep_note(artifacts_dir: Path, adapter_digest: str, content: bytes) -> None:
    """Writes a note that was fetched, atomically. It is checked when it is read."""
    path = note_path(artifacts_dir, adapter_digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, READ_BY_ALL) as file:
        file.write(content)


def encode_note(adapter: DraftAdapter) -> bytes:
    """Returns a note as JSON."""
    note = _Note(adapter.ref.digest, adapter.ref.rank, adapter.placeholder_id, adapter.num_ahead)
    return msgspec.json.encode(note)


def decode_note(content: bytes, source: str, vocab_size: int) -> DraftAdapter:
    """Returns the draft adapter of a note. `source` names it in errors. Raises DraftAdapterError."""
    try:
        note = _notes.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DraftAdapterError(f"{source}: {error}") from error
    is_valid = _DIGEST.fullmatch(note.digest) and note.rank > 0 and 1 <= note.num_ahead <= MAX_AHEAD
    if not is_valid or not 0 <= note.placeholder_token_id < vocab_size:
        raise DraftAdapterError(f"{source}: it names no draft adapter of this base")
    return DraftAdapter(AdapterRef(note.digest, note.rank), note.placeholder_token_id, note.num_ahead)


def read_note(artifacts_dir: Path, adapter_digest: str, vocab_size: int) -> DraftAdapter | None:
    """Returns the draft adapter that is noted for an adapter; None without a note. Raises
    DraftAdapterError.
    """
    path = note_path(artifacts_dir, adapter_digest)
    try:
        with path.open("rb") as opened:
            content = opened.read(MAX_NOTE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DraftAdapterError(f"{path.name}: {error}") from error
    return decode_note(content, path.name, vocab_size)


def remove_note(artifacts_dir: Path, adapter_digest: str) -> str | None:
    """Removes the note of an adapter that is deleted. Returns the digest of its draft adapter, if no other
    note names it: that was trained on what the adapter was.
    """
    path = note_path(artifacts_dir, adapter_digest)
    try:
        named = _notes.decode(path.read_bytes()).digest
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        named = ""
    path.unlink(missing_ok=True)
    if not _DIGEST.fullmatch(named):
        return None
    others = artifacts_dir.glob(f"??/*{NOTE_SUFFIX}")
    is_shared = any(named.encode() in other.read_bytes() for other in others)
    return None if is_shared else named


def note_path(artifacts_dir: Path, adapter_digest: str) -> Path:
    """Returns where the note of an adapter is."""
    return artifact_path(artifacts_dir, adapter_digest).with_suffix(NOTE_SUFFIX)


class NotedDraftAdapters(dict[str, DraftAdapter]):
    """The draft adapters noted beside the artifacts that were loaded, by the adapters' digests."""

    def __init__(self, artifacts_dir: Path, vocab_size: int) -> None:
        super().__init__()
        self._artifacts_dir = artifacts_dir
        self._vocab_size = vocab_size

    def look(self, adapter_digest: str) -> None:
        """Reads the note of an adapter that is being loaded, from the loader's thread. Raises
        DraftAdapterError.
        """
        found = read_note(self._artifacts_dir, adapter_digest, self._vocab_size)
        if found is None:
            self.pop(adapter_digest, None)
        else:
            self[adapter_digest] = found
