"""Shares the base's own scores between calibrations on the same samples, as files.

A file's name contains everything its scores depend on, its content is verified when it is read, and the total
size is bounded. A file that is damaged or of other samples counts as missing and is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex

import msgspec
import structlog

from adapters.calibration.samples import Sample
from adapters.calibration.scores import Scores, decode_scores, encode_scores

log = structlog.get_logger(__name__)

FOLDER = "calibration"
"""Name of the folder, below the directory of packed adapters."""
SUFFIX = ".scores"
MAX_BYTES = 64 << 20
"""Bytes of all files together; the least recently read are evicted first. One file has at most about 2 MB."""
_DIGEST_BYTES = 32


class SharedScores:
    """A directory of scores, for any number of processes at once. Blocks: not for an event loop."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes

    def load(self, name: str, samples: Sequence[Sample]) -> list[Scores] | None:
        """Returns the scores saved under that name, bit for bit; None when there are none that verify."""
        path = self._path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("shared scores cannot be read", path=str(path), error=str(error))
            return None
        try:
            scores = _checked(name, data, samples)
        except ValueError as error:
            log.warning("shared scores are damaged and computed again", path=str(path), error=str(error))
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # marks it as recently read
        return scores

    def save(self, name: str, scores: list[Scores]) -> None:
        """Saves scores if possible: a full disk costs time, not the calibration."""
        payload = encode_scores(scores)
        path = self._path(name)
        written = path.with_suffix(f".{token_hex(4)}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            written.write_bytes(_digest(name, payload) + payload)
            written.replace(path)
            self._trim()
        except OSError as error:
            log.warning("shared scores were not saved", path=str(path), error=str(error))
            with contextlib.suppress(OSError):
                written.unlink()

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}{SUFFIX}"

    def _trim(self) -> None:
        """Evicts files beyond the size limit; partially written ones count too."""
        files = [(path.stat(), path) for path in self._directory.iterdir()]
        files.sort(key=lambda file: file[0].st_mtime, reverse=True)
        total = 0
        for status, path in files:
            total += status.st_size
            if total > self._max_bytes:
                path.unlink(missing_ok=True)


def _checked(name: str, data: bytes, samples: Sequence[Sample]) -> list[Scores]:
    """Decodes and verifies scores. Raises ValueError."""
    digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if digest != _digest(name, payload):
        raise ValueError("the digest differs")
    try:
        scores = decode_scores(payload)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    found = [(len(one.log_probs), len(one.likeliest)) for one in scores]
    if found != [(sample.num_scored, sample.num_scored) for sample in samples]:
        raise ValueError("they belong to other samples")
    if not all(math.isfinite(value) for one in scores for value in one.log_probs):
        raise ValueError("not all are numbers")
    return scores


def _digest(name: str, payload: bytes) -> bytes:
    """Returns a digest that includes the name, so that a renamed file counts as damaged."""
    return hashlib.sha256(name.encode() + b"\0" + payload).digest()
