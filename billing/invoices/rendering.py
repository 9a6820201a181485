"""Draws an invoice or its preview as a PDF.

The same invoice always gives the same bytes. Text is set in an embedded font (DejaVu Sans: Latin, Greek and
Cyrillic), so a page looks the same everywhere; a character it lacks is shown as a question mark.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from fpdf import FPDF
from fpdf.enums import TableBordersLayout, XPos, YPos
from fpdf.fonts import FontFace

from billing.invoices import logo
from billing.invoices.lines import Line, was_too_little
from billing.invoices.views import InvoiceView, cents, dollars, note_name
from billing.months import following

_FONTS = Path(__file__).parent / "fonts"
_FONT = "DejaVu"
_GREY, _BLACK, _RULE = (105, 105, 105), (20, 20, 20), (200, 200, 200)
_GREEN = (23, 101, 60)
_MARGIN = 18
_LOGO = 11
"""Millimetres, each way."""
_WIDTHS = (104, 36, 34)
_SETTLEMENTS = {"due": "not to be paid", "credit": "put into your balance", "refund": "paid back"}


def render(invoice: InvoiceView) -> bytes:
    """Returns the PDF. Takes a tenth of a second of processor time: not for an event loop."""
    page = _Page(invoice)
    page.head()
    page.parties()
    page.lines()
    page.totals()
    page.corrections()
    return bytes(page.output())


class _Page(FPDF):
    def __init__(self, invoice: InvoiceView) -> None:
        super().__init__(format="A4")
        self.invoice = invoice
        self.set_margins(_MARGIN, _MARGIN)
        self.set_auto_page_break(True, 22)
        self.add_font(_FONT, "", _FONTS / "DejaVuSans.ttf")
        self.add_font(_FONT, "B", _FONTS / "DejaVuSans-Bold.ttf")
        self.set_creation_date(invoice.issued_at)
        self.set_title(f"{self.kind} {invoice.name}" if invoice.number else f"{self.kind} {_month(invoice)}")
        self.set_author(invoice.seller.get("name", ""))
        self.set_lang("en")
        self.add_page()

    @property
    def kind(self) -> str:
        return "Invoice" if self.invoice.number else "Invoice preview"

    def footer(self) -> None:
        self.set_y(-16)
        self._font(7.5, colour=_GREY)
        name = self.invoice.name if self.invoice.number else f"Preview of {_month(self.invoice)}"
        self.cell(87, 5, f"{name}  ·  US dollars  ·  times are UTC")
        self.cell(87, 5, f"Page {self.page_no()} of {{nb}}", align="R")

    def head(self) -> None:
        invoice = self.invoice
        top = self.get_y()
        logo.draw(self, _MARGIN, top - 1, _LOGO)
        self.set_x(_MARGIN + _LOGO + 2)
        self._font(17, "B")
        self.cell(93 - _LOGO, 9, self._known(invoice.seller.get("name", "")))
        self.cell(79, 9, self.kind, align="R", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        if invoice.number and invoice.status == "paid" and invoice.total_cents:
            self._paid_mark(top + 14)
        for name, value in self._dates():
            self._font(9, colour=_GREY)
            self.cell(112, 5, name, align="R")
            self._font(9)
            self.cell(62, 5, value, align="R", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        self.ln(4)

    def _dates(self) -> list[tuple[str, str]]:
        invoice = self.invoice
        last = following(invoice.month) - timedelta(days=1)
        dates = [
            ("Month", _month(invoice)),
            ("Period", f"{invoice.month:%Y-%m-%d} to {last:%Y-%m-%d}"),
            ("Issued" if invoice.number else "As of", _day(invoice.issued_at)),
        ]
        if not invoice.number:
            return dates
        if invoice.paid_at is not None:
            last_date = ("Paid", _day(invoice.paid_at))
        elif invoice.status == "paid":
            last_date = ("Due", "nothing to pay")
        else:
            last_date = ("Due", _day(invoice.due_at))
        return [("Number", invoice.name), *dates, last_date]

    def _paid_mark(self, top: float) -> None:
        """Below the seller's name, left of the dates."""
        before = self.get_y()
        self.set_draw_color(*_GREEN)
        self.set_line_width(0.7)
        self.rect(_MARGIN, top, 26, 10, round_corners=True, corner_radius=2)
        self.set_xy(_MARGIN, top)
        self._font(13, "B", colour=_GREEN)
        self.cell(26, 10, "PAID", align="C")
        self.set_line_width(0.2)
        self.set_xy(_MARGIN, before)

    def parties(self) -> None:
        top = self.get_y()
        lowest = top
        for left, title, party in ((0, "From", self.invoice.seller), (87, "To", self.invoice.customer)):
            self.set_xy(_MARGIN + left, top)
            self._font(8, colour=_GREY)
            self.cell(80, 5, title, new_x=XPos.LEFT, new_y=YPos.NEXT)
            tax = f"Tax ID {party['tax_id']}" if party.get("tax_id") else ""
            self._font(9.5, "B")
            self.multi_cell(
                80, 5, self._known(party.get("name", "")), align="L", new_x=XPos.LEFT, new_y=YPos.NEXT
            )
            self._font(9)
            for text in (party.get("address"), party.get("country"), party.get("email"), tax):
                if text:
                    self.multi_cell(80, 4.6, self._known(text), align="L", new_x=XPos.LEFT, new_y=YPos.NEXT)
            lowest = max(lowest, self.get_y())
        self.set_xy(_MARGIN, lowest + 8)

    def lines(self) -> None:
        self._font(8.5)
        self.set_draw_color(*_RULE)
        headings = FontFace(emphasis="BOLD", color=_GREY)
        with self.table(
            borders_layout=TableBordersLayout.HORIZONTAL_LINES,
            col_widths=_WIDTHS,
            headings_style=headings,
            line_height=5,
            padding=(0.6, 1),
            text_align=("LEFT", "RIGHT", "RIGHT"),
            width=sum(_WIDTHS),
        ) as table:
            table.row(("Description", "Quantity", "USD"))
            for line in self.invoice.lines:
                table.row((self._known(line.description), quantity(line), dollars(line.amount)))
            if not self.invoice.lines:
                table.row(("Nothing was used.", "", dollars(0)))
        self.ln(3)

    def totals(self) -> None:
        invoice = self.invoice
        self._sum("Subtotal", dollars(invoice.total))
        if invoice.carried_out:
            why = (
                "Less than can be charged; it is on the next invoice"
                if was_too_little(invoice.carried_out)
                else "Rounded to the cent; the rest is on the next invoice"
            )
            self._sum(why, dollars(-invoice.carried_out))
        self._sum("Total", f"USD {cents(invoice.total_cents)}", strong=True)

    def corrections(self) -> None:
        invoice = self.invoice
        if not (invoice.notes or invoice.payments):
            return
        self.ln(2)
        for note in invoice.notes:
            what = f"Credit note {note_name(note.number)}, {_day(note.issued_at)}, "
            self._sum(what + _SETTLEMENTS[note.settlement], cents(-note.amount_cents))
        for payment in invoice.payments:
            what = "Paid" if payment.kind == "payment" else "Paid back"
            self._sum(f"{what}, {_day(payment.at)}", cents(-payment.amount_cents))
        self._sum("Amount due", f"USD {cents(max(0, invoice.due_cents))}", strong=True)

    def _sum(self, name: str, value: str, *, strong: bool = False) -> None:
        self._font(10.5 if strong else 8.5, "B" if strong else "")
        height = 7 if strong else 5
        self.cell(134, height, name, align="R")
        self.cell(40, height, value, align="R", new_x=XPos.LMARGIN, new_y=YPos.NEXT)

    def _known(self, text: str) -> str:
        """Returns the text with a question mark for each character that the font lacks."""
        letters = self.fonts[f"{_FONT.lower()}B"].cmap  # both styles have the same characters
        return "".join(char if char == "\n" or ord(char) in letters else "?" for char in text)

    def _font(self, size: float, style: str = "", colour: tuple[int, int, int] = _BLACK) -> None:
        self.set_font(_FONT, style, size)  # type: ignore[arg-type]
        self.set_text_color(*colour)


def quantity(line: Line) -> str:
    """Returns the quantity in tokens, GB-days or jobs; empty if there is nothing to count."""
    count = line.details.get("quantity")
    if count is None:
        return ""
    if line.kind == "storage":
        return f"{count / 10**9:,.3f} GB-days"
    unit = "jobs" if line.kind == "calibration" else "tokens"
    return f"{count:,} {unit}"


def _month(invoice: InvoiceView) -> str:
    return f"{invoice.month:%B %Y}"


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"
