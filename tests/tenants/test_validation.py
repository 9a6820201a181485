"""Which characters names may have: the same in every version of Python, and in the OpenAPI document."""

from __future__ import annotations

import re
import sys
import unicodedata

from tenants.validation import PRINTABLE, is_printable

REFUSED = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def test_every_visible_character_is_printable_and_no_invisible_one() -> None:
    pattern = re.compile(PRINTABLE)
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Cn":
            continue  # later versions of Unicode assign some of these
        wanted = category not in REFUSED and (category != "Zs" or character == " ")
        assert is_printable(character) == wanted, f"U+{code:04X} {category}"
        if category != "Cs":
            assert (pattern.fullmatch(character) is not None) == wanted, f"U+{code:04X} {category}"
