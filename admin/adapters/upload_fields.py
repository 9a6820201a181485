"""Maps the parameter that an error is about to a field of the upload page."""

from __future__ import annotations

from typing import Literal

from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from engine.signing.statement import SIGNATURE_FILE

UploadField = Literal["weights", "config", "signature", "calibration"]

PURPOSES: dict[UploadField, str] = {
    "weights": "adapter",
    "config": "adapter",
    "signature": "adapter",
    "calibration": "calibration",
}
OPTIONAL = frozenset({"signature", "calibration"})
_FIELDS = {
    "name": "name",
    "calibration.file_id": "calibration",
    "file_ids": "form",
    "base_model": "form",
    WEIGHTS_FILE: "weights",
    CONFIG_FILE: "config",
    SIGNATURE_FILE: "signature",
}


def upload_field_of(param: str | None) -> str:
    """`weights`, `config`, `signature`, `calibration`, `name`, or `form` for all of it."""
    if param is None:
        return "form"
    if param in _FIELDS:
        return _FIELDS[param]
    # A tensor's key is a path of modules; fields of the config have no dots.
    return "weights" if "." in param or param == "__metadata__" else "config"
