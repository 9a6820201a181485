"""Charts of the console: their layout, and the SVG they are drawn with."""
