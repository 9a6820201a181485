"""Parses amounts of money and sizes as people write them, and writes sizes exactly, as a form shows them.

`admin.formatting` formats both for reading.
"""

from __future__ import annotations

import re

from admin.web.form_errors import FieldError

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]{1,3})?) ?([kmgt]i?b|b)?", re.IGNORECASE)
_UNITS = {
    "TB": 10**12, "TiB": 2**40, "GB": 10**9, "GiB": 2**30,
    "MB": 10**6, "MiB": 2**20, "kB": 10**3, "KiB": 2**10,
}  # fmt: skip
_BYTES = {unit.lower(): num_bytes for unit, num_bytes in _UNITS.items()} | {"b": 1, "": 1}
_DOLLARS = re.compile(r"([0-9]{1,10})(?:\.([0-9]{1,6}))?")


def read_dollars(written: str, field: str) -> int:
    """Micro-USD. Raises FieldError, about `field`."""
    found = _DOLLARS.fullmatch(written.strip().removeprefix("$").replace(",", ""))
    if found is None:
        raise FieldError(field, "Enter an amount in US dollars, such as 250 or 99.50.")
    return int(found[1]) * 1_000_000 + int((found[2] or "").ljust(6, "0"))


def read_size(written: str, field: str) -> int:
    """Bytes. Raises FieldError, about `field`."""
    found = _SIZE.fullmatch(written.strip())
    if found is None:
        raise FieldError(field, "Enter a size such as 500 MB or 20 GB.")
    whole, _, rest = found[1].partition(".")
    num_bytes = _BYTES[(found[2] or "").lower()]
    if rest and num_bytes == 1:
        raise FieldError(field, "Enter a whole number of bytes.")
    return int(whole) * num_bytes + (int(rest) * num_bytes // 10 ** len(rest) if rest else 0)


def size_written(num_bytes: int) -> str:
    """Returns a size as `read_size` reads it: in the unit that fits, if it is exact with three decimals
    there, or in bytes.
    """
    for unit, per_unit in _UNITS.items():
        thousandths, rest = divmod(num_bytes * 1000, per_unit)
        fits = num_bytes >= per_unit and (num_bytes < 1024 * per_unit or unit in ("TB", "TiB"))
        if fits and not rest:
            return f"{thousandths // 1000}.{thousandths % 1000:03}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{num_bytes} B"
