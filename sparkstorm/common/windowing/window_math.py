"""Arithmetic of tumbling and sliding windows over any axis: milliseconds of event time, or
positions of tuples.

A window is half open, [end - length, end), and ends at a multiple of the slide, as Storm's do
(Storm's own windows hold their end instead of their start). Rows are kept in *cells*: shared ones
of the greatest common size, which windows are merged from, or one per window where cells cannot be
merged.
"""

from __future__ import annotations

from math import gcd


class Layout:
    """Cells of a point, and windows of a cell.

    `cell` is the size of a shared cell; when windows tumble, every point is in exactly one window,
    which is one cell.
    """

    __slots__ = ("length", "slide", "is_shared", "cell", "is_tumbling")

    def __init__(self, length: int, slide: int, is_shared: bool = True) -> None:
        self.length = length
        self.slide = slide
        self.is_shared = is_shared
        self.cell = gcd(length, slide)
        self.is_tumbling = length == slide

    def ends(self, position: int) -> range:
        """Return the ends of the windows that hold a point (or a shared cell from there); empty in
        the gaps of slide > length.
        """
        first = (position // self.slide + 1) * self.slide
        return range(first, position + self.length + 1, self.slide)

    def cells_of(self, position: int) -> tuple[int, ...]:
        """Return the starts of the cells that hold a point; empty if no window does."""
        if self.is_shared:
            return (
                (position - position % self.cell,)
                if self.is_tumbling or len(self.ends(position))
                else ()
            )
        return tuple(end - self.length for end in self.ends(position))

    def ends_of(self, cell: int) -> range:
        """Return the ends of the windows of a cell."""
        return (
            self.ends(cell) if self.is_shared else range(cell + self.length, cell + self.length + 1)
        )

    def cells_in(self, end: int) -> range:
        """Return the starts of the cells of a window."""
        return range(end - self.length, end, self.cell if self.is_shared else self.length)
