"""Colours, texts and the frame of the pictures of clusters, as SVG. PURE."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

# Distinct with colour blindness, too (after Okabe and Ito), the system's components grey.
PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8b6fc0",
    "#b5a800",
    "#7f4f24",
    "#3c6e71",
)
INK = "#222222"
FAINT = "#767676"
LINE = "#c9c9c9"
PAPER = "#ffffff"
LOST = "#f1f1f1"


@dataclass(frozen=True, slots=True)
class Svg:
    """A drawing that a notebook shows and a file may hold."""

    text: str
    width: int
    height: int

    def _repr_svg_(self) -> str:
        return self.text


def text(
    x: int, y: int, words: str, size: int, color: str, weight: str = "400", anchor: str = "start"
) -> str:
    """A line of text at a point."""
    style = f'font-size="{size}" fill="{color}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {style}>{_escaped(words)}</text>'


def _escaped(words: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", words))


def cut(words: str, most: int) -> str:
    """The beginning and the end: names of a kind differ there."""
    if len(words) <= most:
        return words
    return f"{words[: most // 2]}…{words[-(most - most // 2 - 1) :]}"


def document(width: int, height: int, parts: Iterable[str], title: str) -> str:
    """A whole drawing in its frame; the title is for screen readers."""
    frame = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="{PAPER}" stroke="{LINE}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif" role="img" aria-label="{_escaped(title)}">'
        f"{frame}{''.join(parts)}</svg>"
    )
