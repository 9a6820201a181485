"""Draws a certificate of deletion as a PDF, from its JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fpdf import FPDF
from fpdf.enums import TableBordersLayout, XPos, YPos
from fpdf.fonts import FontFace

import billing.invoices
from billing.invoices import logo
from retention.certificates import CAUSES

_FONTS = Path(billing.invoices.__file__).parent / "fonts"
_FONT = "DejaVu"
_GREY, _BLACK, _RULE = (105, 105, 105), (20, 20, 20), (200, 200, 200)
_MARGIN = 18
_LOGO = 11
"""Millimetres, each way."""
MOST_IDS = 100
"""Ids of a table that are printed; the JSON has all that the certificate lists."""


def render(document: Mapping[str, Any]) -> bytes:
    """Returns the PDF. Takes a tenth of a second of processor time: not for an event loop."""
    page = _Page(document)
    page.head()
    for deletion in document["statement"]["deletions"]:
        page.deletion(deletion)
    page.kept()
    page.proof()
    return bytes(page.output())


class _Page(FPDF):
    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(format="A4")
        self.document = document
        self.statement: Mapping[str, Any] = document["statement"]
        self.set_margins(_MARGIN, _MARGIN)
        self.set_auto_page_break(True, 22)
        self.add_font(_FONT, "", _FONTS / "DejaVuSans.ttf")
        self.add_font(_FONT, "B", _FONTS / "DejaVuSans-Bold.ttf")
        self.set_creation_date(datetime.fromisoformat(self.statement["issued_at"]))
        self.set_title(f"Certificate of deletion {self.statement['number']}")
        self.set_lang("en")
        self.add_page()

    def footer(self) -> None:
        self.set_y(-16)
        self._font(7.5, colour=_GREY)
        self.cell(130, 5, f"{self.statement['id']}  ·  times are UTC")
        self.cell(44, 5, f"Page {self.page_no()} of {{nb}}", align="R")

    def head(self) -> None:
        said = self.statement
        top = self.get_y()
        logo.draw(self, _MARGIN, top - 1, _LOGO)
        self.set_x(_MARGIN + _LOGO + 2)
        self._font(17, "B")
        self.cell(0, 9, "Certificate of deletion", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        self.ln(4)
        for name, value in (
            ("Certificate", f"{said['number']}, {said['id']}"),
            ("Organization", said["organization_id"]),
            ("Cause", CAUSES[said["cause"]]),
            ("Issued", _moment(said["issued_at"])),
            ("Deleted", f"{said['rows']:,} rows, {said['objects']:,} objects of the object store"),
            ("Backups", f"hold it until {_moment(said['backups_hold_it_until'])} at the latest"),
        ):
            self._field(name, value)

    def deletion(self, deletion: Mapping[str, Any]) -> None:
        self.ln(4)
        self._font(11, "B")
        target = deletion["object"]
        title = f"{target['kind'].capitalize()} {target['id']}" if target else "By retention periods"
        self.multi_cell(0, 6, title, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        self._field("From", f"{_moment(deletion['started_at'])} to {_moment(deletion['ended_at'])}")
        if deletion["requested_by"]:
            by = deletion["requested_by"]
            self._field("Requested by", f"{by['type'].replace('_', ' ')} {by['id']}")
        if deletion["periods_days"]:
            periods = (f"{name} {days} days" for name, days in sorted(deletion["periods_days"].items()))
            self._field("Periods", ", ".join(periods))
        self.ln(1)
        self._font(8)
        self.set_draw_color(*_RULE)
        with self.table(
            borders_layout=TableBordersLayout.HORIZONTAL_LINES,
            col_widths=(46, 18, 18, 46, 46),
            headings_style=FontFace(emphasis="BOLD", color=_GREY),
            line_height=4.6,
            padding=(0.6, 1),
            text_align=("LEFT", "RIGHT", "RIGHT", "LEFT", "LEFT"),
            width=174,
        ) as table:
            table.row(("Table", "Rows", "Objects", "Oldest", "Newest"))
            for one in deletion["tables"]:
                cells = (one["table"], f"{one['rows']:,}", f"{one['objects']:,}")
                table.row((*cells, _moment(one["oldest"]), _moment(one["newest"])))
        for one in deletion["tables"]:
            self._ids(one)

    def _ids(self, table: Mapping[str, Any]) -> None:
        if table["ids_sha256"] is None:
            return
        self.ln(1)
        self._font(7, colour=_GREY)
        text = f"{table['table']}: ids have the digest {table['ids_sha256']}"
        ids = table["ids"]
        if ids is not None:
            shown = ", ".join(ids[:MOST_IDS])
            more = f", and {len(ids) - MOST_IDS:,} more in the JSON" if len(ids) > MOST_IDS else ""
            text += f". {shown}{more}"
        self.multi_cell(0, 3.6, text, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)

    def kept(self) -> None:
        kept = self.statement.get("kept", ())
        if kept:
            self.ln(4)
        for one in kept:
            self._field("Kept", f"{one['what']}, {one['period']}: {one['why']}")

    def proof(self) -> None:
        signature = self.document["signature"]
        self.ln(4)
        self._font(11, "B")
        self.cell(0, 6, "Proof", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        for name, value in (
            ("SHA-256", self.document["sha256"]),
            ("Before it", self.statement["previous_sha256"]),
            (signature["algorithm"], signature["value"]),
            ("Public key", f"{signature['public_key']} (id {signature['key_id']})"),
        ):
            self._field(name, value)
        self.ln(1)
        self._font(8, colour=_GREY)
        text = (
            "The signature is that of the JSON file's statement. `rootstock evidence verify FILE` checks it "
            "without a connection to the service. This page is for reading."
        )
        self.multi_cell(0, 4.4, text, new_x=XPos.LMARGIN, new_y=YPos.NEXT)

    def _field(self, name: str, value: str) -> None:
        self._font(8.5, colour=_GREY)
        self.cell(28, 5, name)
        self._font(8.5)
        self.multi_cell(146, 5, value, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)

    def _font(self, size: float, style: str = "", colour: tuple[int, int, int] = _BLACK) -> None:
        self.set_font(_FONT, style, size)  # type: ignore[arg-type]
        self.set_text_color(*colour)


def _moment(moment: str | None) -> str:
    return "-" if moment is None else f"{moment[:10]} {moment[11:19]}"
