"""Draws the product's mark, a grafted shoot, into a PDF."""

from __future__ import annotations

from fpdf import FPDF
from fpdf.drawing import DeviceRGB

_SIZE = 32
"""Units of the drawing along each side."""
_DARK, _LIGHT = DeviceRGB(0.184, 0.561, 0.357), DeviceRGB(0.388, 0.725, 0.541)
_STROKES = ((16, 29, 16, 13), (10, 29, 22, 29))
_LEAVES = ((1, 20, _DARK), (-1, 14, _LIGHT))
"""Side of the shoot, where the leaf begins, colour."""


def draw(page: FPDF, left: float, top: float, size: float) -> None:
    """Draws it `size` millimetres wide and high."""
    unit = size / _SIZE

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * unit, top + y * unit

    for x1, y1, x2, y2 in _STROKES:
        with page.new_path(*at(x1, y1)) as path:
            path.style.stroke_color = _DARK
            path.style.stroke_width = 2.6 * unit
            path.style.stroke_cap_style = "round"
            path.style.fill_color = None
            path.line_to(*at(x2, y2))
    for side, y, colour in _LEAVES:
        with page.new_path(*at(16, y)) as path:
            path.style.fill_color = colour
            path.style.stroke_color = colour
            path.style.stroke_width = 1.4 * unit
            path.curve_to(*at(16, y - 5), *at(16 + 3 * side, y - 8), *at(16 + 9 * side, y - 8))
            path.curve_to(*at(16 + 9 * side, y - 3), *at(16 + 6 * side, y), *at(16, y))
            path.close()
