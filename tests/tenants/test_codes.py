"""Codes of second factors: which are good at a moment, and how they may be typed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tenants.identities import codes

NOW = datetime.fromtimestamp(1_800_000_000 + 29.9, UTC)
STEP = 60_000_000
SECRET = b"12345678901234567890"


def test_the_code_is_that_of_the_rfc() -> None:
    """RFC 6238, appendix B, SHA-1, its last six digits."""
    for seconds, code in ((59, "287082"), (1_111_111_109, "081804"), (20_000_000_000, "353130")):
        moment = datetime.fromtimestamp(seconds, UTC)
        assert codes.code_at(SECRET, codes.step_of(moment)) == code


def test_a_clock_may_be_off_by_one_step_either_way() -> None:
    assert codes.step_of(NOW) == STEP
    for offset in (-1, 0, 1):
        code = codes.code_at(SECRET, STEP + offset)
        assert codes.matching_step(SECRET, code, NOW, None) == STEP + offset
    for offset in (-2, 2):
        assert codes.matching_step(SECRET, codes.code_at(SECRET, STEP + offset), NOW, None) is None


def test_a_code_is_good_once() -> None:
    code = codes.code_at(SECRET, STEP)
    assert codes.matching_step(SECRET, code, NOW, STEP - 1) == STEP
    assert codes.matching_step(SECRET, code, NOW, STEP) is None
    assert codes.matching_step(SECRET, code, NOW, STEP + 1) is None


def test_blanks_do_not_matter_and_anything_else_does() -> None:
    code = codes.code_at(SECRET, STEP)
    assert codes.matching_step(SECRET, f" {code[:3]} {code[3:]} ", NOW, None) == STEP
    for written in ("", code[:5], code + code, code + "0", "12345a", "١٢٣٤٥٦"):
        assert codes.matching_step(SECRET, written, NOW, None) is None


def test_recovery_codes_are_read_however_they_are_typed() -> None:
    made = codes.new_recovery_codes()
    assert len(set(made)) == codes.NUM_RECOVERY
    for code in made:
        for written in (code, code.upper(), code.replace("-", ""), f" {code[:5]} {code[5:]} "):
            assert codes.read_recovery(written) == code


@pytest.mark.parametrize("written", ["", "abcde", "abcde-fghijk", "abcd!-fghij", "abcde-fghi"])
def test_what_is_no_recovery_code_is_none(written: str) -> None:
    assert codes.read_recovery(written) is None
