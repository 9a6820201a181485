"""The fields of the upload page, and which of them a refusal is about.

Services name what is at fault as the API does: a request's field, a file, a field of the config, a tensor.
"""

from __future__ import annotations

from typing import Literal

from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE

Slot = Literal["weights", "config", "calibration"]

PURPOSES: dict[Slot, str] = {"weights": "adapter", "config": "adapter", "calibration": "calibration"}
_FIELDS = {
    "name": "name",
    "calibration.file_id": "calibration",
    "file_ids": "form",
    "base_model": "form",
    WEIGHTS_FILE: "weights",
    CONFIG_FILE: "config",
}


def slot_of(param: str | None) -> str:
    """`weights`, `config`, `calibration`, `name`, or `form` for all of it."""
    if param is None:
        return "form"
    if param in _FIELDS:
        return _FIELDS[param]
    # A tensor's key is a path of modules; fields of the config have no dots.
    return "weights" if "." in param or param == "__metadata__" else "config"
