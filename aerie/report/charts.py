"""Charts as inline SVG, written by hand.

Horizontal positions are percentages, so a chart takes the width it is given while its text and
strokes keep their size: one chart serves a phone, a desk and paper. Colours are classes, and the
page's variables behind them follow the reader's light or dark theme.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_ROW_HEIGHT = 40
_TOP = 6
_TOP_WITH_MARK = 26
_AXIS = 26
_LABEL_CHARACTERS = 30
_MOST_POINTS = 400


@dataclass(frozen=True)
class Axis:
    """A range with round ends and the ticks on it."""

    low: float
    high: float
    ticks: tuple[float, ...]
    show: Callable[[float], str]

    def at(self, value: float) -> float:
        """Position of `value` along the axis, as a share from 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


@dataclass(frozen=True)
class Mark:
    """A vertical line across all rows, with its name above; a `plain` one only orients."""

    value: float
    name: str
    plain: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a chart: a bar from the axis's start, or dots; a line under them; words at the end.

    A `total` stands for all rows. `dots` are pairs of a value and the class of its mark.
    """

    label: str
    note: str
    bar: float | None = None
    bar_mark: str = "accent"
    dots: Sequence[tuple[float, str]] = ()
    line: tuple[float, float] | None = None
    total: bool = False


@dataclass(frozen=True)
class Series:
    """A line of a chart: points from left to right."""

    name: str
    mark: str
    points: Sequence[tuple[float, float]]


def axis(
    values: Sequence[float], show: Callable[[float], str], intervals: int = 4, tight: bool = False
) -> Axis:
    """An axis over `values` whose ends are ticks; a `tight` one ends where the values end."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low < 1e-12:
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / intervals
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    # Float noise must not add a tick beyond an end that is itself a tick.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if tight:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple(round(i * step, 12) for i in range(first, last + 1))
    return Axis(low if tight else ticks[0], high if tight else ticks[-1], ticks, show)


def rows_chart(
    ident: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    scale: Axis,
    mark: Mark | None = None,
) -> Markup:
    """Horizontal bars, or dots with intervals, one row each, and a vertical line across them."""
    top = _TOP_WITH_MARK if mark else _TOP
    bottom = top + _ROW_HEIGHT * len(rows)
    height = bottom + _AXIS
    parts = [_grid(scale, top, bottom)]
    # Before the rows: on a phone their names lie over the line, with a halo that parts it.
    if mark:
        x, kind = scale.at(mark.value), "mark plain" if mark.plain else "mark"
        side = "start" if x < 0.2 else "end" if x > 0.8 else "middle"
        parts.append(_line(x, top - 8, x, bottom, kind))
        parts.append(
            _text(x, top - 13, mark.name, f"mark-name {side}{' plain' if mark.plain else ''}")
        )
    for index, row in enumerate(rows):
        parts.append(_row(row, scale, top + _ROW_HEIGHT * index + 27))
    return _svg(ident, title, description, height, "rows", Markup("").join(parts))


def _row(row: Row, scale: Axis, y: int) -> Markup:
    label = row.label
    if len(label) > _LABEL_CHARACTERS:
        label = label[: _LABEL_CHARACTERS - 1] + "…"
    parts = [Markup("<title>{}: {}</title>").format(row.label, row.note)]
    parts.append(_text(0, y + 4, label, "row-name total" if row.total else "row-name"))
    parts.append(_text(1, y + 4, row.note, "row-note"))
    if row.bar is not None:
        parts.append(_rect(0, scale.at(row.bar), y - 5, 10, f"fill-{row.bar_mark}"))
    if row.line:
        low, high = scale.at(row.line[0]), scale.at(row.line[1])
        if row.bar is not None:
            parts.append(_line(low, y, high, y, "whisker under"))
        parts.append(_line(low, y, high, y, "whisker over" if row.bar is not None else "whisker"))
    for value, kind in row.dots:
        x = 100 * scale.at(value)
        parts.append(
            Markup('<circle cx="{:.3f}%" cy="{}" r="5.5" class="dot-{}"/>').format(x, y, kind)
        )
    return Markup("<g>{}</g>").format(Markup("").join(parts))


def columns_chart(
    ident: str,
    title: str,
    description: str,
    labels: Sequence[str],
    series: Sequence[tuple[str, Sequence[float | None]]],
    scale: Axis,
) -> Markup:
    """Vertical bars in groups: one group a label, one bar a series (its mark and its values)."""
    top, plot = 20, 200
    parts = [_levels(scale, top, plot)]
    slot = 1 / max(len(labels), 1)
    width = min(slot * 0.72 / max(len(series), 1), 0.11)
    for index, label in enumerate(labels):
        middle = slot * (index + 0.5)
        parts.append(_text(middle, top + plot + 18, label, "tick middle"))
        for order, (kind, values) in enumerate(series):
            value = values[index]
            if value is None:
                continue
            left = middle + width * (order - len(series) / 2)
            y = top + plot * (1 - scale.at(value))
            name = "value middle" if len(labels) <= 4 else "value middle dense"
            bar = _rect(left + width * 0.06, left + width * 0.94, y, top + plot - y, f"fill-{kind}")
            parts += [bar, _text(left + width / 2, y - 5, scale.show(value), name)]
    height = top + plot + _AXIS
    return _svg(ident, title, description, height, "levels columns", Markup("").join(parts))


def lines_chart(
    ident: str,
    title: str,
    description: str,
    series: Sequence[Series],
    across: Axis,
    scale: Axis,
    dots: bool = False,
) -> Markup:
    """Lines over a horizontal axis. Long ones are drawn as means of equal runs of points."""
    top, plot = 12, 180
    parts = [_levels(scale, top, plot)]
    for tick in across.ticks:
        x = across.at(tick)
        side = "start" if x < 0.02 else "end" if x > 0.98 else "middle"
        parts.append(_text(x, top + plot + 18, across.show(tick), f"tick {side}"))
    curves = []
    for line in series:
        points = " ".join(
            f"{1000 * across.at(x):.1f},{1000 * (1 - scale.at(y)):.1f}"
            for x, y in thinned(line.points)
        )
        curves.append(
            Markup('<polyline points="{}" class="stroke-{}"><title>{}</title></polyline>').format(
                points, line.mark, line.name
            )
        )
    parts.append(
        Markup(
            '<svg y="{}" width="100%" height="{}" viewBox="0 0 1000 1000" '
            'preserveAspectRatio="none" class="curves">{}</svg>'
        ).format(top, plot, Markup("").join(curves))
    )
    if dots:
        parts += [_points(line, across, scale, top, plot) for line in series]
    height = top + plot + _AXIS
    return _svg(ident, title, description, height, "levels", Markup("").join(parts))


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """`points`, or the means of equal runs of them where there are more than can be seen."""
    run = math.ceil(len(points) / _MOST_POINTS) if points else 1
    groups = [points[start : start + run] for start in range(0, len(points), run)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ]


def _points(line: Series, across: Axis, scale: Axis, top: int, plot: int) -> Markup:
    radius = "2.5" if line.mark == "quiet" else "4"
    return Markup("").join(
        Markup(
            '<circle cx="{:.3f}%" cy="{:.1f}" r="{}" class="dot-{}"><title>{}</title></circle>'
        ).format(
            100 * across.at(x),
            top + plot * (1 - scale.at(y)),
            radius,
            line.mark,
            f"{line.name}: {scale.show(y)}",
        )
        for x, y in line.points
    )


def _svg(ident: str, title: str, description: str, height: int, kind: str, body: Markup) -> Markup:
    return (
        Markup(
            '<svg class="chart" role="img" aria-labelledby="{0}-t {0}-d" width="100%" height="{1}">'
            '<title id="{0}-t">{2}</title><desc id="{0}-d">{3}</desc>{4}</svg>'
        )
        .format(ident, height, title, description, body)
        .join((Markup('<div class="plot {}">').format(kind), Markup("</div>")))
    )


def _grid(scale: Axis, top: int, bottom: int) -> Markup:
    parts = []
    for tick in scale.ticks:
        x = scale.at(tick)
        side = "start" if x < 0.02 else "end" if x > 0.98 else "middle"
        parts.append(_line(x, top, x, bottom, "grid"))
        parts.append(_text(x, bottom + 18, scale.show(tick), f"tick {side}"))
    return Markup("").join(parts)


def _levels(scale: Axis, top: int, plot: int) -> Markup:
    parts = []
    for tick in scale.ticks:
        y = top + plot * (1 - scale.at(tick))
        parts.append(_line(0, y, 1, y, "grid"))
        parts.append(_text(0, y + 4, scale.show(tick), "level"))
    return Markup("").join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<line x1="{:.3f}%" y1="{:.1f}" x2="{:.3f}%" y2="{:.1f}" class="{}"/>').format(
        100 * x1, y1, 100 * x2, y2, kind
    )


def _rect(left: float, right: float, y: float, height: float, kind: str) -> Markup:
    return Markup(
        '<rect x="{:.3f}%" y="{:.1f}" width="{:.3f}%" height="{:.1f}" rx="2" class="{}"/>'
    ).format(100 * left, y, 100 * max(right - left, 0), max(height, 0), kind)


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return Markup('<text x="{:.3f}%" y="{:.1f}" class="{}">{}</text>').format(
        100 * x, y, kind, escape(text)
    )
