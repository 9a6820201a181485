"""Invoices as PDF: what is on the page, read back from the document."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from billing.invoices.lines import Line
from billing.invoices.models import InvoicePayment
from billing.invoices.rendering import quantity, render
from billing.invoices.views import InvoiceView, cents, dollars

NOW = datetime(2026, 11, 2, tzinfo=UTC)
LINE = Line(
    "usage",
    date(2026, 10, 1),
    "sapling, default, input tokens",
    98_765_432,
    {"item": "input", "model": "sapling", "service_tier": "default", "quantity": 123_456_789},
)
INVOICE = InvoiceView(
    "inv_1",
    42,
    "tnt_a",
    date(2026, 10, 1),
    NOW,
    NOW + timedelta(days=14),
    98_765_432,
    9_877,
    -4_568,
    {"name": "Acorn Serving Ltd", "address": "1 Oak Lane\nCambridge"},
    {"tenant_id": "tnt_a", "name": "Łódź Ελλάς 日本"},
    (LINE,),
)


_STREAM = re.compile(rb"stream\r?\n(.*?)\r?\nendstream", re.DOTALL)
_FONT_OR_TEXT = re.compile(rb"/F(\d+) [\d.]+ Tf|\(((?:[^\\()]|\\.)*)\) Tj", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


def text_of(document: bytes) -> list[str]:
    """What the pages say, piece by piece: glyph numbers, by each font's table from glyphs to letters."""
    streams = _STREAM.findall(document)
    tables = [
        {
            int(glyph, 16): bytes.fromhex(letter.decode()).decode("utf-16-be")
            for glyph, letter in re.findall(rb"<([0-9A-Fa-f]+)> <([0-9A-Fa-f]+)>\n", stream)
        }
        for stream in streams
        if b"beginbfchar" in stream
    ]
    shown, font = [], 0
    for stream in streams:
        page = zlib.decompress(stream) if stream.startswith(b"x") else b""
        for found in _FONT_OR_TEXT.finditer(page) if b" Tf" in page else ():
            if found[1]:
                font = int(found[1]) - 1
                continue
            glyphs = re.sub(rb"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), found[2], flags=re.DOTALL)
            numbers = [int.from_bytes(glyphs[i : i + 2]) for i in range(0, len(glyphs), 2)]
            shown.append("".join(tables[font][number] for number in numbers))
    return shown


def test_the_page_says_what_the_invoice_does() -> None:
    text = text_of(render(INVOICE))
    for piece in (
        "Acorn Serving Ltd", "1 Oak Lane", "Łódź Ελλάς ??", "INV-000042", "October 2026", "2026-11-16",
        "sapling, default, input tokens", "123,456,789 tokens", "98.765432", "USD 98.77", "0.004568",
        "2026-10-01 to 2026-10-31", "2026-11-02",
    ):  # fmt: skip
        assert piece in text, (piece, text)


def test_a_paid_invoice_says_when_and_an_open_one_when_it_is_due() -> None:
    paid = InvoicePayment(kind="payment", at=NOW + timedelta(days=3), amount_cents=9_877)
    assert "PAID" not in (still_open := text_of(render(INVOICE)))
    assert still_open[still_open.index("Due") + 1] == "2026-11-16"
    text = text_of(render(replace(INVOICE, payments=(paid,))))
    assert "PAID" in text
    assert text[text.index("Paid") + 1] == "2026-11-05"
    assert "Due" not in text
    assert "2026-11-16" not in text
    part = replace(INVOICE, payments=(InvoicePayment(kind="payment", at=NOW, amount_cents=1),))
    assert "PAID" not in text_of(render(part))
    nothing = text_of(render(replace(INVOICE, total=0, total_cents=0, carried_out=0)))
    assert "PAID" not in nothing
    assert nothing[nothing.index("Due") + 1] == "nothing to pay"
    preview = text_of(render(replace(INVOICE, id=None, number=None)))
    assert "Due" not in preview


def test_a_preview_says_that_it_is_one() -> None:
    text = text_of(render(replace(INVOICE, id=None, number=None)))
    assert "Invoice preview" in text
    assert not any("INV-" in piece for piece in text)


def test_the_same_invoice_is_the_same_document() -> None:
    assert render(INVOICE) == render(INVOICE)


def test_an_invoice_of_many_lines_goes_on_over_pages() -> None:
    document = render(replace(INVOICE, lines=(LINE,) * 100))
    text = text_of(document)
    assert text.count("98.765432") == 101, "each line, and the sum"
    pages = text.count("Quantity")
    assert pages > 2, "the heading is on each"
    assert f"Page {pages} of {pages}" in "".join(text)


def test_amounts_are_written_out() -> None:
    assert dollars(-1_234_567_890) == "-1,234.567890"
    assert dollars(5) == "0.000005"
    assert cents(-1_205) == "-12.05"
    assert quantity(replace(LINE, kind="storage", details={"quantity": 1_500_000_000})) == "1.500 GB-days"
    assert quantity(replace(LINE, kind="calibration", details={"quantity": 2})) == "2 jobs"
    assert quantity(replace(LINE, kind="fee", details={})) == ""
