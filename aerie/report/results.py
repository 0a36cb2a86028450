"""Sections about what was measured: verdict, domains, positions."""

from collections.abc import Sequence
from typing import Any

from aerie.report.blocks import Facts, Figure, Gallery, Key, Prose, Section, Source, Table
from aerie.report.charts import Mark, Row, axis, columns_chart, rows_chart
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
    plural,
    rows,
    shown,
    significant,
    table,
    times,
    with_interval,
    words,
)

_OVERALL = "Overall"
_DOMAIN_HEAD = (
    "Domain",
    "Prompts",
    "Rounds",
    "Accept length",
    "95 % interval",
    "Plain, tokens/s",
    "Draft, tokens/s",
    "Speed-up",
)


def name_of(bench: Any) -> str:
    """`main / heldout`."""
    return f"{dig(bench, 'run') or 'run'} / {dig(bench, 'suite') or 'suite'}"


def round_figure(document: Document) -> Figure:
    """The break-even as a picture: what one round costs beside what it yields."""
    bench = document.content
    cost, length = number(bench, "round_cost"), number(bench, "accept_length")
    cost_ci, length_ci = interval(bench, "round_cost_ci95"), interval(bench, "accept_length_ci95")
    entries = [
        Row("A round costs", f"{decimal(cost)} plain steps", cost, "even", line=cost_ci),
        Row("A round yields", f"{decimal(length)} tokens", length, "accent", line=length_ci),
    ]
    values = [0.0, 1.0, *(v for v in (cost, length) if v is not None)]
    values += [end for pair in (cost_ci, length_ci) if pair for end in pair]
    chart = rows_chart(
        "chart-round",
        "What one round of speculation costs and yields",
        f"A round costs {decimal(cost)} plain steps and yields {decimal(length)} tokens. "
        "The draft pays where the second bar is longer than the first.",
        entries,
        axis(values, lambda v: decimal(v, 1)),
        Mark(1, "a plain step", plain=True),
    )
    numbers = Table(
        "One round of speculation",
        ("Quantity", "Value", "95 % interval"),
        [
            ("Cost, plain steps", decimal(cost), between(cost_ci)),
            ("Yield, tokens", decimal(length), between(length_ci)),
        ],
    )
    note = "The draft pays where a round yields more tokens than it costs plain steps."
    return Figure("One round of speculation", chart, numbers, [document.source], note)


def benches_table(benches: Sequence[Document]) -> Table:
    """All benches beside each other, where there are several."""
    entries = []
    for document in benches:
        bench = document.content
        entries.append(
            (
                name_of(bench),
                integer(count(bench, "k")),
                with_interval(
                    number(bench, "accept_length"), interval(bench, "accept_length_ci95")
                ),
                significant(number(bench, "plain", "tokens_per_s")),
                significant(number(bench, "draft", "tokens_per_s")),
                times(number(bench, "speedup")),
                decimal(number(bench, "round_cost")),
            )
        )
    head = ("Run / suite", "k", "Accept length", "Plain, tokens/s", "Draft, tokens/s", "Speed-up")
    sources = [document.source for document in benches]
    return Table("Every bench of this report", (*head, "R"), entries, sources=sources)


def domains(material: Material) -> Section:
    """Accept length and speed of each domain."""
    section = Section(
        "domains",
        "Where it helps",
        "Domains",
        "Accept length and speed of each domain. A dot is the measured value, the line its 95 % "
        "interval; domains whose interval crosses the break-even line are undecided.",
    )
    for index, document in enumerate(material.benches):
        if len(material.benches) > 1:
            section.blocks.append(Prose("", name_of(document.content)))
        section.blocks.extend(_domain_blocks(document, index))
    return section


def _domain_blocks(document: Document, index: int) -> list[Figure | Prose]:
    bench = document.content
    found = table(bench, "domains")
    names = sorted(found, key=lambda name: -(number(found, name, "accept_length") or 0))
    if not names:
        return [Prose("This bench measured no domains apart.")]
    numbers = _domain_table(bench, names)
    blocks: list[Figure | Prose] = [_accept_figure(document, names, numbers, index)]
    blocks.append(_speed_figure(document, names, numbers, index))
    return blocks


def _domain_table(bench: Any, names: list[str]) -> Table:
    def row(name: str, entry: Any, plain: float | None, draft: float | None) -> tuple[str, ...]:
        return (
            name,
            integer(count(entry, "prompts")),
            integer(count(entry, "rounds")),
            decimal(number(entry, "accept_length")),
            between(interval(entry, "accept_length_ci95")),
            significant(plain),
            significant(draft),
            times(number(entry, "speedup")),
        )

    def tail(entry: Any) -> tuple[float | None, float | None]:
        return number(entry, "plain_tokens_per_s"), number(entry, "draft_tokens_per_s")

    entries = table(bench, "domains")
    overall = (number(bench, "plain", "tokens_per_s"), number(bench, "draft", "tokens_per_s"))
    return Table(
        f"Domains of {name_of(bench)}",
        _DOMAIN_HEAD,
        [row(name, entries[name], *tail(entries[name])) for name in names],
        footer=row("Overall", bench, *overall),
    )


def _accept_figure(document: Document, names: list[str], numbers: Table, index: int) -> Figure:
    bench = document.content
    even = number(bench, "break_even_accept_length")
    entries, values = [], [1.0]
    for name, entry in [(n, dig(bench, "domains", n)) for n in names] + [(_OVERALL, bench)]:
        length, pair = number(entry, "accept_length"), interval(entry, "accept_length_ci95")
        kind = "strong" if entry is bench else "accent"
        dots = [] if length is None else [(length, kind)]
        entries.append(
            Row(name, with_interval(length, pair), dots=dots, line=pair, total=entry is bench)
        )
        values += [v for v in (length, *(pair or ())) if v is not None]
    chart = rows_chart(
        f"chart-accept-{index}",
        f"Accept length by domain, {name_of(bench)}",
        f"One row a domain. Overall {decimal(number(bench, 'accept_length'))}; "
        f"break-even at {decimal(even)}.",
        entries,
        axis([*values, *([even] if even is not None else [])], _short),
        None if even is None else Mark(even, f"break-even {decimal(even)}"),
    )
    legend = [Key("dot-accent", "domain"), Key("dot-strong", "overall")]
    legend += [Key("whisker", "95 % interval"), Key("mark", "break-even")]
    return Figure("Accept length", chart, numbers, [document.source], "tokens per round", legend)


def _speed_figure(document: Document, names: list[str], numbers: Table, index: int) -> Figure:
    bench = document.content
    entries, values = [], [0.0]
    pairs = [
        (
            name,
            number(bench, "domains", name, "plain_tokens_per_s"),
            number(bench, "domains", name, "draft_tokens_per_s"),
            number(bench, "domains", name, "speedup"),
        )
        for name in names
    ]
    plain, draft = number(bench, "plain", "tokens_per_s"), number(bench, "draft", "tokens_per_s")
    pairs.append((_OVERALL, plain, draft, number(bench, "speedup")))
    for name, before, after, speedup in pairs:
        dots = [(v, kind) for v, kind in ((before, "hollow"), (after, "accent")) if v is not None]
        line = (before, after) if before is not None and after is not None else None
        note = f"{significant(before)} → {significant(after)}, {times(speedup)}"
        entries.append(
            Row(name, note if dots else "not timed", dots=dots, line=line, total=name == _OVERALL)
        )
        values += [v for v, _ in dots]
    chart = rows_chart(
        f"chart-speed-{index}",
        f"Speed by domain, {name_of(bench)}",
        f"One row a domain, without and with the draft. Overall {significant(plain)} and "
        f"{significant(draft)} tokens per second.",
        entries,
        axis(values, integer),
    )
    legend = [Key("dot-hollow", "plain decoding"), Key("dot-accent", "with the draft")]
    return Figure("Speed", chart, numbers, [document.source], "tokens per second", legend)


def positions(material: Material) -> Section:
    """Acceptance at each draft position."""
    section = Section(
        "positions",
        "How deep the guesses hold",
        "Positions",
        "Joint acceptance is the share of all rounds in which this guess and every guess before it "
        "were right; their sum plus one is the accept length. Conditional acceptance counts only "
        "the rounds that reached the position.",
    )
    for index, document in enumerate(material.benches):
        found, facts = rows(document.content, "positions"), _bench_facts(document)
        figure = [_position_figure(document, found, index)] if found else []
        section.blocks.append(Gallery([*figure, facts]))
    return section


def _position_figure(document: Document, found: list[Any], index: int) -> Figure:
    labels = [integer(count(entry, "position") or i) for i, entry in enumerate(found, start=1)]
    joint = [number(entry, "joint") for entry in found]
    conditional = [number(entry, "conditional") for entry in found]
    known = [value for value in (*joint, *conditional) if value is not None]
    chart = columns_chart(
        f"chart-positions-{index}",
        f"Acceptance by position, {name_of(document.content)}",
        "Two bars a draft position: joint and conditional acceptance. "
        + "; ".join(
            f"position {label}: {percent(a)} and {percent(b)}"
            for label, a, b in zip(labels, joint, conditional, strict=True)
        ),
        [f"position {label}" if len(labels) <= 4 else label for label in labels],
        [("accent", joint), ("quiet", conditional)],
        axis([0, *known], lambda v: percent(v, 0)),
    )
    numbers = Table(
        f"Acceptance by position, {name_of(document.content)}",
        ("Position", "Reached", "Accepted", "Conditional", "Joint"),
        [
            (
                label,
                integer(count(entry, "reached")),
                integer(count(entry, "accepted")),
                percent(number(entry, "conditional")),
                percent(number(entry, "joint")),
            )
            for label, entry in zip(labels, found, strict=True)
        ],
    )
    legend = [Key("fill-accent", "joint"), Key("fill-quiet", "conditional")]
    title = f"Acceptance, {name_of(document.content)}"
    return Figure(title, chart, numbers, [document.source], "share of rounds", legend)


def _bench_facts(document: Document) -> Facts:
    bench = document.content
    sampling, hardware = table(bench, "sampling"), table(bench, "hardware")
    by_request = with_interval(
        number(bench, "accept_length_by_request"), interval(bench, "accept_length_by_request_ci95")
    )
    equal = dig(bench, "equal_outputs")
    items = [
        ("Accept length, mean of requests", by_request),
        ("Simulated accept length", decimal(number(bench, "simulated_accept_length"))),
        ("Prompts", integer(count(bench, "prompts"))),
        ("Rounds", integer(count(bench, "rounds"))),
        ("Output tokens", integer(count(bench, "output_tokens"))),
        ("Outputs equal to plain decoding", _equal(equal)),
        ("Engine", str(dig(bench, "engine") or "—")),
        ("Draft tokens a round, k", integer(count(bench, "k"))),
        ("Timed repeats", integer(count(bench, "repeats"))),
        ("Sampling", _pairs(sampling)),
        ("Hardware", _hardware(hardware)),
    ]
    return Facts(f"Measurement, {name_of(bench)}", items, [document.source])


def _short(value: float) -> str:
    return decimal(value).rstrip("0").rstrip(".")


def _equal(equal: Any) -> str:
    rate = number(equal, "rate")
    if rate is None:
        return "—"
    found = f"{integer(count(equal, 'equal'))} of {integer(count(equal, 'compared'))}"
    return f"{found}, {percent(rate)}, in {shown(dig(equal, 'dtype'))}"


def _hardware(values: dict[str, Any]) -> str:
    threads, memory = count(values, "threads"), number(values, "memory_gib")
    parts = [str(values["cpu"])] if values.get("cpu") else []
    parts += [plural(threads, "thread")] if threads is not None else []
    parts += [f"{decimal(memory, 0)} GiB"] if memory is not None else []
    known = {"cpu", "threads", "memory_gib"}
    parts += [f"{words(k)} {shown(v)}" for k, v in values.items() if k not in known]
    return ", ".join(parts) or "—"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{words(k)} {shown(v)}" for k, v in values.items()) or "—"


def sources(material: Material) -> list[Source]:
    """Where the verdict came from."""
    return [document.source for document in material.benches]
