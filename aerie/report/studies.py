"""Sections on what else could be done: more data, another map, another mix."""

import math
from typing import Any

from aerie.report.blocks import Figure, Key, Prose, Section, Table
from aerie.report.charts import Mark, Row, Series, axis, lines_chart, rows_chart
from aerie.report.collect import Document, Material
from aerie.report.text import (
    between,
    count,
    decimal,
    dig,
    integer,
    interval,
    number,
    percent,
    rows,
    shown,
    significant,
    table,
    with_interval,
    words,
)

_OVERALL = "overall"


def scaling(material: Material) -> Section:
    """What more data would give."""
    section = Section(
        "scaling",
        "Would more data help",
        "Scaling",
        "The same recipe on nested fractions of the data, judged on the same held-out samples by "
        "the simulated accept length.",
    )
    if material.scaling is None:
        return _unstudied(section, "scaling")
    document = material.scaling
    overall = dig(document.content, "groups", _OVERALL)
    section.blocks.append(Prose(str(dig(document.content, "verdict", "words") or "")))
    section.blocks.append(_sizes(document, overall))
    if any(number(point, "samples") for point in rows(overall, "curve")):
        section.blocks.append(_curve(document, overall))
    section.blocks.append(_forecasts(document))
    return section


def _sizes(document: Document, overall: Any) -> Figure:
    entries, values, numbers = [], [], []
    for point in rows(overall, "points"):
        length, pair = number(point, "accept_length"), interval(point, "accept_length_ci95")
        name = f"{integer(count(point, 'samples'))} samples"
        numbers.append((name, decimal(length, 3), between(pair, 3)))
        entries.append(
            Row(name, with_interval(length, pair), dots=_dots(length, "accent"), line=pair)
        )
        values += [v for v in (length, *(pair or ())) if v is not None]
    for entry in rows(overall, "forecast"):
        length, pair = number(entry, "accept_length"), interval(entry, "accept_length_ci95")
        name = f"{integer(count(entry, 'multiple'))} times the data"
        numbers.append((f"{name}, forecast", decimal(length, 3), between(pair, 3)))
        note = "not said" if length is None else with_interval(length, pair)
        entries.append(Row(name, note, dots=_dots(length, "hollow"), line=pair))
        values += [v for v in (length, *(pair or ())) if v is not None]
    chart = rows_chart(
        "chart-scaling-sizes",
        "Accept length by number of samples",
        "One row a size of the data, then what the curve says of more.",
        entries,
        axis(values, lambda v: decimal(v)),
    )
    legend = [Key("dot-accent", "measured"), Key("dot-hollow", "forecast")]
    legend.append(Key("whisker", "95 % interval"))
    numbered = Table(
        "Accept length by number of samples", ("Data", "Accept length", "95 % interval"), numbers
    )
    return Figure("By size", chart, numbered, [document.source], "simulated", legend)


def _curve(document: Document, overall: Any) -> Figure:
    points = [point for point in rows(overall, "curve") if number(point, "samples")]
    size = [math.log2(point["samples"]) for point in points]
    middle = [number(point, "accept_length") or 0.0 for point in points]
    pairs = [interval(point, "accept_length_ci95") for point in points]
    series = [Series("curve", "accent", list(zip(size, middle, strict=True)))]
    ends = [pair for pair in pairs if pair]
    if len(ends) == len(size):
        for name, side in (("lower end", 0), ("upper end", 1)):
            band = [(x, pair[side]) for x, pair in zip(size, ends, strict=True)]
            series.append(Series(name, "quiet", band))
    values = [y for line in series for _, y in line.points]
    form = words(str(dig(overall, "form")))
    chart = lines_chart(
        "chart-scaling-curve",
        "The curve that foresaw the largest size best",
        f"Accept length over the number of samples, each tick a doubling; {form}.",
        series,
        axis(size, lambda v: integer(2**v)),
        axis(values, lambda v: decimal(v)),
    )
    numbered = Table(
        "Curve",
        ("Samples", "Accept length", "95 % interval"),
        [
            (integer(point["samples"]), decimal(y, 3), between(pair, 3))
            for point, y, pair in zip(points, middle, pairs, strict=True)
        ],
    )
    legend = [Key("stroke-accent", form), Key("stroke-quiet", "95 % of drafts")]
    return Figure("Curve", chart, numbered, [document.source], "samples, doubling", legend)


def _forecasts(document: Document) -> Table:
    entries = []
    for name, group in table(document.content, "groups").items():
        cells = []
        for entry in rows(group, "forecast"):
            pair = interval(entry, "accept_length_ci95")
            length = number(entry, "accept_length")
            cells.append(
                shown(dig(entry, "refused")) if length is None else with_interval(length, pair)
            )
        gain = number(group, "doubling", "gain")
        entries.append(
            (
                name,
                integer(count(group, "prompts")),
                words(str(dig(group, "form") or "none")),
                decimal(gain, 3),
                between(interval(group, "doubling", "gain_ci95"), 3),
                *cells,
            )
        )
    multiples = [
        integer(count(entry, "multiple"))
        for entry in rows(document.content, "groups", _OVERALL, "forecast")
    ]
    head = ("Domain", "Held-out prompts", "Curve", "Doubling adds", "95 % interval")
    return Table(
        "What more data would give, by domain",
        (*head, *(f"{multiple} times" for multiple in multiples)),
        entries,
        sources=[document.source],
    )


def map_study(material: Material) -> Section:
    """What another size of the map would cost and gain."""
    section = Section(
        "map-study",
        "Would another map help",
        "Map size",
        "The same draft with a head cut to each size, walked over the held-out samples. A larger "
        "map has no draft yet: its coverage says what it would allow at most.",
    )
    if material.map_study is None:
        return _unstudied(section, "map-study")
    document = material.map_study
    own, size = " (this build)", count(document.content, "own")
    section.blocks.append(
        Table(
            "Sizes of the map",
            (
                "Size", "Coverage", "Most it allows", "Accept length", "Lost", "95 % interval",
                "Head, MB", "Head, ms a token",
            ),
            [
                (
                    integer(count(entry, "size")) + own * (count(entry, "size") == size),
                    percent(number(entry, "coverage"), 2),
                    decimal(number(entry, "ceiling")),
                    with_interval(
                        number(entry, "accept_length"), interval(entry, "accept_length_ci95")
                    ),
                    decimal(number(entry, "lost"), 3),
                    between(interval(entry, "lost_ci95"), 3),
                    significant((number(entry, "head_bytes") or 0) / 1e6),
                    significant(1000 * (number(entry, "head_seconds") or 0)),
                )
                for entry in rows(document.content, "sizes")
            ],
            sources=[document.source],
        )
    )  # fmt: skip
    names = sorted({n for e in rows(document.content, "sizes") for n in table(e, "datasets")})
    sizes = rows(document.content, "sizes")
    section.blocks.append(
        Table(
            "Coverage by dataset",
            ("Dataset", *(integer(count(entry, "size")) for entry in sizes)),
            [
                (
                    name,
                    *(percent(number(e, "datasets", name, "coverage"), 2) for e in sizes),
                )
                for name in names
            ],
            sources=[document.source],
        )
    )
    return section


def mix_study(material: Material) -> Section:
    """Which dataset helps which domain."""
    section = Section(
        "mix-study",
        "Which dataset helps which domain",
        "Mix",
        "Drafts on a fraction of the data, with and without each dataset, judged on the same "
        "held-out samples. What a dataset gives is undecided where the interval spans zero.",
    )
    if material.mix_study is None:
        return _unstudied(section, "mix-study")
    document = material.mix_study
    effects = rows(document.content, "effects")
    section.blocks.append(_overall(document, effects))
    section.blocks.append(
        Table(
            "What each dataset gives to each domain",
            (
                "Dataset left out", "Domain", "Held-out prompts", "Accept length", "Without it",
                "It gives", "95 % interval", "Verdict",
            ),
            [
                (
                    shown(dig(effect, "left_out")),
                    shown(dig(effect, "domain")),
                    integer(count(effect, "prompts")),
                    decimal(number(effect, "accept_length"), 3),
                    decimal(number(effect, "accept_length_without"), 3),
                    decimal(number(effect, "gain"), 3),
                    between(interval(effect, "gain_ci95"), 3),
                    shown(dig(effect, "verdict")),
                )
                for effect in effects
            ],
            numeric_from=2,
            folded=True,
            sources=[document.source],
        )
    )  # fmt: skip
    return section


def _overall(document: Document, effects: list[Any]) -> Figure:
    entries, values, numbers = [], [0.0], []
    for effect in effects:
        if dig(effect, "domain") != _OVERALL:
            continue
        gain, pair = number(effect, "gain"), interval(effect, "gain_ci95")
        name = shown(dig(effect, "left_out"))
        numbers.append((name, decimal(gain, 3), between(pair, 3)))
        note = shown(dig(effect, "verdict"))
        entries.append(Row(name, note, dots=_dots(gain, "accent"), line=pair))
        values += [v for v in (gain, *(pair or ())) if v is not None]
    chart = rows_chart(
        "chart-mix",
        "What each dataset gives to the accept length",
        "Accept length with all datasets less that without the one, over all held-out prompts.",
        entries,
        axis(values, lambda v: decimal(v)),
        Mark(0, "gives nothing"),
    )
    numbered = Table(
        "What each dataset gives, overall", ("Dataset", "It gives", "95 % interval"), numbers
    )
    legend = [Key("dot-accent", "with less without"), Key("whisker", "95 % interval")]
    return Figure("Overall", chart, numbered, [document.source], "simulated", legend)


def _unstudied(section: Section, target: str) -> Section:
    section.blocks.append(Prose(f"Not studied yet: `make {target}` does it from the same states."))
    return section


def _dots(length: float | None, kind: str) -> list[tuple[float, str]]:
    return [] if length is None else [(length, kind)]
