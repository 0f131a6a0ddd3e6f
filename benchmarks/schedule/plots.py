"""Small pictures as SVG text: bars of ratios to the bound, lines over the predictor's quality."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

COLOURS: Final = (
    "#0f766e", "#c2410c", "#1d4ed8", "#a16207", "#7e22ce", "#be123c", "#4d7c0f", "#0369a1",
    "#6b7280", "#9a3412",
)  # fmt: skip
"""Told apart on the white that every picture brings."""

BAR: Final = 9
GAP: Final = 12
LEFT: Final = 190
WIDTH: Final = 620
TOP: Final = 54
LEGEND_COLUMN: Final = 200
LEGEND_COLUMNS: Final = 4
LINES_HEIGHT: Final = 240


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars: a title for each group, a value for each series (None: not run)."""

    title: str
    groups: Sequence[tuple[str, Sequence[float | None]]]
    series: Sequence[str]
    value_max: float
    """Longer bars are cut here and their value written."""


def bars(chart: Bars) -> str:
    """Horizontal bars; a line marks 1, the bound."""
    rows = -(-len(chart.series) // LEGEND_COLUMNS)
    top = TOP + 18 * rows
    each = len(chart.series) * BAR + GAP
    height = top + each * len(chart.groups) + 30
    scale = WIDTH / chart.value_max
    parts = [_text(8, 20, chart.title, size=15), *_legend(chart.series)]
    for number, (name, values) in enumerate(chart.groups):
        y = top + number * each
        parts.append(_text(LEFT - 8, y + each // 2, name, anchor="end"))
        for index, value in enumerate(values):
            parts += _bar(index, y + index * BAR, value, scale * chart.value_max, scale)
    at = LEFT + scale
    parts.append(
        f'<line x1="{at:.1f}" y1="{top - 6}" x2="{at:.1f}" y2="{height - 26}" '
        'stroke="#888" stroke-dasharray="3 3"/>'
    )
    parts.append(_text(at, height - 10, "1 = bound", anchor="middle"))
    return _svg(LEFT + WIDTH + 60, height, parts)


def _bar(index: int, y: float, value: float | None, length_max: float, scale: float) -> list[str]:
    if value is None:
        return []
    length = min(value * scale, length_max)
    colour = COLOURS[index % len(COLOURS)]
    return [
        f'<rect x="{LEFT}" y="{y:.1f}" width="{length:.1f}" height="{BAR - 1}" fill="{colour}"/>',
        _text(LEFT + length + 4, y + BAR - 2, f"{value:.2f}", size=8),
    ]


def lines(title: str, xs: Sequence[float], series: Mapping[str, Sequence[float | None]]) -> str:
    """Lines over shared x values, the y axis from the smallest to the largest value."""
    known = [value for values in series.values() for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    margin = 0.1 * (high - low) or 0.05
    low, high = low - margin, high + margin
    rows = -(-len(series) // LEGEND_COLUMNS)
    top = TOP + 18 * rows

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / ((xs[-1] - xs[0]) or 1.0)
        return LEFT + across * WIDTH, top + (high - y) / (high - low) * LINES_HEIGHT

    parts = [_text(8, 20, title, size=15), *_legend(list(series))]
    for y in (low + margin, high - margin):
        left, at = place(xs[0], y)
        parts.append(_text(left - 8, at + 4, f"{y:.3f}", anchor="end"))
    for x in xs:
        parts.append(_text(place(x, low)[0], top + LINES_HEIGHT + 18, f"{x:g}", anchor="middle"))
    for index, values in enumerate(series.values()):
        points = [place(x, y) for x, y in zip(xs, values, strict=True) if y is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return _svg(LEFT + WIDTH + 60, top + LINES_HEIGHT + 36, parts)


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for index, name in enumerate(names):
        x = 8 + LEGEND_COLUMN * (index % LEGEND_COLUMNS)
        y = 32 + 18 * (index // LEGEND_COLUMNS)
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 15, y + 9, name))
    return parts


def _text(x: float, y: float, words: str, size: int = 11, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="#222">{escape(words)}</text>'
    )


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )
