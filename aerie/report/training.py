"""Sections about how the draft came to be: training curves and the coverage of the map."""

import json
from typing import Any

from rich import filesize

from aerie.report.blocks import Chips, Facts, Figure, Gallery, Key, Prose, Section, Table
from aerie.report.charts import Axis, Row, Series, axis, lines_chart, rows_chart
from aerie.report.collect import Document, Material
from aerie.report.text import (
    DASH,
    TIMES,
    count,
    decimal,
    dig,
    integer,
    number,
    percent,
    rows,
    shown,
    significant,
    table,
    words,
)

_TABLE_ROWS = 40
_SHADES = 7
_MISSING_SHOWN = 12
# More would touch each other in half the width of a page.
_EPOCH_TICKS = 10
_COUNTS = {
    "steps": "Optimizer steps",
    "supervised": "Supervised tokens seen",
    "samples": "Training samples",
    "held_out": "Held-out samples",
}
_SETTINGS = {
    "steps": "Training-time-test steps",
    "decay": "Weight of step i, base",
    "eval_share": "Share held out",
    "clip": "Gradient norm at most",
    "pack_tokens": "Tokens of a pack",
    "dtype": "Precision",
}


def training(material: Material) -> Section:
    """Loss, learning rate, accuracy and the simulated accept length of each epoch."""
    section = Section("training", "How it learnt", "Training")
    figures = _curves(material.train) if material.train and material.train.content else []
    if material.eval and rows(material.eval.content, "epochs"):
        figures.append(_epochs(material.eval))
    if figures:
        section.blocks.append(Gallery(figures))
    if material.draft:
        section.blocks.append(_settings(material.draft))
    if material.rolling:
        section.blocks.append(_rolling(material.rolling))
    if not section.blocks:
        section.blocks.append(Prose("No training record was given to this report."))
    return section


def _curves(document: Document) -> list[Figure]:
    records = document.content
    series = {
        key: [
            (x, y)
            for record in records
            if (x := number(record, "step")) is not None and (y := number(record, key)) is not None
        ]
        for key in ("loss", "learning_rate")
    }
    steps = [x for record in records if (x := number(record, "step")) is not None]
    across = axis(steps, integer, tight=True)
    depth = max((len(rows(record, "accuracy")) for record in records), default=0)
    lines = [_accuracy(records, step) for step in range(depth)]
    loss = [y for _, y in series["loss"]]
    rate = [y for _, y in series["learning_rate"]]
    hits = [y for line in lines for _, y in line.points]
    legend = [Key(f"stroke-{line.mark}", line.name) for line in lines]

    def figure(ident: str, title: str, drawn: list[Series], scale: Axis, note: str) -> Figure:
        last = "; ".join(
            f"{line.name} ends at {scale.show(line.points[-1][1])}" for line in drawn if line.points
        )
        chart = lines_chart(
            ident, title, f"{title} by optimizer step. {last}.", drawn, across, scale
        )
        keys = legend if len(drawn) > 1 else ()
        numbers = _curve_table(title, drawn, scale)
        return Figure(title, chart, numbers, [document.source], note, keys)

    by_step = "by optimizer step"
    share = axis([0.0, *hits], lambda v: percent(v, 0))
    one = {key: [Series(words(key), "accent", points)] for key, points in series.items()}
    # In this order the two without a legend stand side by side, and the two with one.
    return [
        figure("chart-loss", "Loss", one["loss"], axis(loss, _short), by_step),
        figure(
            "chart-rate", "Learning rate", one["learning_rate"], axis([0.0, *rate], _scientific),
            by_step,
        ),
        figure("chart-accuracy", "Accuracy of each guess", lines, share, by_step),
    ]  # fmt: skip


def _accuracy(records: list[Any], step: int) -> Series:
    points = [
        (x, y)
        for record in records
        if (x := number(record, "step")) is not None
        and (y := number(record, "accuracy", step)) is not None
    ]
    return Series(f"guess {step + 1}", f"seq{min(step, _SHADES - 1)}", points)


def _curve_table(title: str, drawn: list[Series], scale: Axis) -> Table:
    """At most about forty steps of the curves, the last one always among them."""
    steps = [x for x, _ in max((line.points for line in drawn), key=len, default=())]
    chosen = steps[:: max(1, -(-len(steps) // _TABLE_ROWS))]
    chosen += steps[-1:] if chosen[-1:] != steps[-1:] else []
    values = [dict(line.points) for line in drawn]
    entries = [
        (
            integer(step),
            *(DASH if (y := line.get(step)) is None else scale.show(y) for line in values),
        )
        for step in chosen
    ]
    head = ("Step", *(line.name.capitalize() for line in drawn))
    return Table(f"{title} by step", head, entries, numeric_from=0)


def _scientific(value: float | None) -> str:
    if value is None:
        return DASH
    if value == 0:
        return "0"
    mantissa, power = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(power)}"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _epochs(document: Document) -> Figure:
    epochs = rows(document.content, "epochs")
    numbers = [count(entry, "epoch") or index for index, entry in enumerate(epochs, start=1)]
    names = sorted({name for entry in epochs for name in table(entry, "datasets")})

    def points(*keys: str) -> list[tuple[float, float]]:
        found = ((n, number(entry, *keys)) for n, entry in zip(numbers, epochs, strict=True))
        return [(n, value) for n, value in found if value is not None]

    overall = points("overall", "accept_length")
    curves = {name: points("datasets", name, "accept_length") for name in names}
    ends = {name: curve[-1][1] for name, curve in curves.items() if curve}
    best = max(ends, key=ends.__getitem__, default=None)
    worst = min(ends, key=ends.__getitem__, default=None)
    marks = {worst: "even", best: "accent"}
    # What stands out is drawn last, over the rest.
    ordered = sorted(names, key=lambda name: name in marks)
    drawn = [Series(name, marks.get(name, "quiet"), curves[name]) for name in ordered]
    drawn.append(Series("overall", "strong", overall))
    values = [y for line in drawn for _, y in line.points]
    ticks = tuple(map(float, numbers[:: -(-len(numbers) // _EPOCH_TICKS)]))
    across = Axis(min(numbers) - 0.15, max(numbers) + 0.15, ticks, lambda n: f"{n:.0f}")
    chart = lines_chart(
        "chart-epochs",
        "Simulated accept length by epoch",
        "One line a dataset, held-out samples. "
        + "; ".join(f"epoch {n:.0f}: {decimal(y)} overall" for n, y in overall)
        + ".",
        drawn,
        across,
        axis(values, _short),
        dots=True,
    )
    legend = [Key("stroke-strong", "overall")]
    if best is not None and best != worst:
        legend += [Key("stroke-accent", f"{best}, highest"), Key("stroke-even", f"{worst}, lowest")]
    if len(names) > len(marks):
        legend.append(Key("stroke-quiet", "the other datasets"))
    note = "held-out samples"
    return Figure(
        "Simulated accept length by epoch",
        chart,
        _epoch_table(epochs, numbers, names),
        [document.source],
        note,
        legend,
    )


def _epoch_table(epochs: list[Any], numbers: list[int], names: list[str]) -> Table:
    def row(label: str, *keys: str) -> tuple[str, ...]:
        lengths = (decimal(number(entry, *keys, "accept_length"), 3) for entry in epochs)
        last = epochs[-1]
        sizes = (count(last, *keys, "samples"), count(last, *keys, "rounds"))
        return (label, *map(integer, sizes), *lengths)

    return Table(
        "Simulated accept length on held-out samples",
        ("Dataset", "Samples", "Rounds", *(f"Epoch {n}" for n in numbers)),
        [row(name, "datasets", name) for name in names],
        footer=row("Overall", "overall"),
    )


def _settings(document: Document) -> Facts:
    counts = table(document.content, "counts")
    settings = table(document.content, "provenance", "settings")
    items = [(_named(key, _COUNTS), integer(count(counts, key))) for key in counts]
    items += [(_named(key, _SETTINGS), shown(value)) for key, value in settings.items()]
    return Facts("Recipe", items, [document.source])


def _rolling(document: Document) -> Facts:
    """What it cost that states were captured as the draft was trained."""
    content = document.content
    times = [v for part in table(content, "captures") if (v := count(content, "captures", part))]
    peak, budget, written = (
        DASH if (found := count(content, key)) is None else filesize.decimal(found)
        for key in ("peak_bytes", "budget_bytes", "bytes_written")
    )
    spread = f"{integer(min(times, default=0))} to {integer(max(times, default=0))}"
    items = [
        ("Windows, all epochs", integer(count(content, "windows"))),
        ("Parts captured", integer(len(times))),
        ("Captures of parts", f"{integer(sum(times))}, {spread} of each"),
        ("Time of the captures", f"{significant(number(content, 'capture_s'))} s"),
        ("Time of the training", f"{significant(number(content, 'training_s'))} s"),
        ("States written", written),
        ("States on the disk, at most", f"{peak} of {budget}"),
    ]
    return Facts("Rolling capture", items, [document.source])


def _named(key: str, names: dict[str, str]) -> str:
    return names.get(key) or words(key).capitalize()


def coverage(material: Material) -> Section:
    """What share of the supervised tokens the map keeps."""
    section = Section(
        "coverage",
        "What the map leaves out",
        "Coverage",
        "The draft can only propose tokens of its map. Coverage is the share of supervised tokens "
        "that the map keeps; every other token is a certain miss.",
    )
    document = material.coverage
    if document is None:
        section.blocks.append(Prose("No coverage was given to this report."))
        return section
    section.blocks.append(_coverage_figure(document))
    section.blocks.append(_missing(document))
    items = [
        ("Entries of the map", integer(count(document.content, "size"))),
        ("Of them padding", integer(count(document.content, "padded"))),
    ]
    sources = [document.source]
    if material.map:
        found = table(material.map.content, "counts")
        items += [(words(k).capitalize(), integer(count(found, k))) for k in found if k != "size"]
        sources.append(material.map.source)
    section.blocks.append(Facts("The map", items, sources))
    return section


def _coverage_figure(document: Document) -> Figure:
    found = table(document.content, "datasets")
    names = sorted(found, key=lambda name: number(found, name, "coverage") or 0)
    overall = number(document.content, "overall")
    shares = {name: number(found, name, "coverage") for name in names}
    lowest = min([v for v in (*shares.values(), overall) if v is not None], default=0.0)
    # Coverage lives near 1: the axis starts a little below the lowest, at dots and not at bars,
    # since the length of a bar would lie on an axis that does not start at 0.
    entries = [
        Row(name, percent(share, 2), dots=[] if share is None else [(share, "accent")])
        for name, share in shares.items()
    ]
    dots = [] if overall is None else [(overall, "strong")]
    entries.append(Row("Overall", percent(overall, 2), dots=dots, total=True))
    chart = rows_chart(
        "chart-coverage",
        "Coverage by dataset",
        f"One row a dataset, lowest first. Overall {percent(overall, 2)}.",
        entries,
        # Never a single value, around which an axis would reach beyond all there is.
        axis([min(lowest, 0.98), 1.0], lambda v: percent(v, 1 if lowest > 0.96 else 0)),
    )
    numbers = Table(
        "Coverage by dataset",
        ("Dataset", "Coverage", "Supervised tokens", "Distinct tokens"),
        [
            (
                name,
                percent(shares[name], 2),
                integer(count(found, name, "supervised")),
                integer(count(found, name, "distinct")),
            )
            for name in names
        ],
        footer=("Overall", percent(overall, 2), "", ""),
    )
    note = "share of supervised tokens"
    return Figure("Coverage by dataset", chart, numbers, [document.source], note)


def _missing(document: Document) -> Table:
    found = table(document.content, "datasets")
    entries: list[tuple[str | Chips, ...]] = []
    for name in found:
        top = rows(found, name, "missing_top")[:_MISSING_SHOWN]
        shown = [(_token(entry), f"{TIMES}{integer(count(entry, 1))}") for entry in top]
        entries.append((name, Chips(shown) if shown else "none"))
    return Table(
        "Tokens that the map misses most, with how often they were supervised",
        ("Dataset", "Tokens"),
        entries,
        numeric_from=2,
        sources=[document.source],
    )


def _token(entry: Any) -> str:
    """A token's text, quoted so that spaces and line ends show; its id where there is no text."""
    text = dig(entry, 2)
    return (
        json.dumps(text, ensure_ascii=False)
        if isinstance(text, str)
        else f"id {shown(dig(entry, 0))}"
    )
