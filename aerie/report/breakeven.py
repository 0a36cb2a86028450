"""The section on where speculation pays: by domain, by draft length and by concurrency."""

from collections.abc import Sequence

from aerie.bench.breakeven import (
    Choice,
    Costs,
    best,
    ceiling,
    costs_of,
    lengths_of,
    loses_from,
    pay_back,
    surface,
)
from aerie.bench.statistics import Interval
from aerie.report.blocks import Facts, Figure, Key, Prose, Section, Source, Table
from aerie.report.charts import Mark, Row, axis, rows_chart
from aerie.report.collect import Document, Material
from aerie.report.results import name_of
from aerie.report.text import (
    DASH,
    count,
    decimal,
    dig,
    integer,
    interval,
    number,
    percent,
    table,
    times,
)

_OVERALL = "Overall"


def break_even(material: Material) -> Section:
    """Speed-up by k and concurrency, the best choice of each, the goal, the pay-back."""
    section = Section(
        "break-even",
        "Where it pays",
        "Break-even",
        "The speed-up is the accept length over the cost of a round. Both grow with the draft "
        "length k; the cost grows with concurrency too, until speculation loses.",
    )
    first = material.benches[0]
    costs = costs_of({name_of(d.content): d.content for d in _timed(material.benches)})
    # Without a bench that was timed there is nothing to read lengths from either.
    lengths = lengths_of(first.content) if costs.cells else {}
    if not lengths:
        section.blocks.append(Prose("No round cost was measured, so no break-even is known."))
    else:
        sources = [document.source for document in material.benches]
        choices = surface(lengths, costs)
        section.blocks.extend([_surface(choices, costs, sources), _domains(first, costs)])
        section.blocks.append(Prose(_losing(choices, costs)))
    section.blocks.append(_goal(material, first))
    return section


def _timed(documents: Sequence[Document]) -> list[Document]:
    return [d for d in documents if number(d.content, "round_cost") and count(d.content, "k")]


def _surface(choices: Sequence[Choice], costs: Costs, sources: Sequence[Source]) -> Table:
    chains = sorted({choice.k for choice in choices})
    cells = {(choice.concurrency, choice.k): choice.speedup for choice in choices}
    return Table(
        "Speed-up by concurrency and draft length k; below 1 speculation loses",
        ("Concurrency", *(f"k = {k}" for k in chains)),
        [(integer(b), *(times(cells.get((b, k))) for k in chains)) for b in costs.concurrencies],
        sources=sources,
    )


def _domains(document: Document, costs: Costs) -> Figure:
    """The best chain of each domain at the least concurrency, and what it brings."""
    least = costs.concurrencies[0]
    found = table(document.content, "domains")
    curves = {name: lengths_of(document.content, name) for name in found}
    curves[_OVERALL] = lengths_of(document.content)
    chosen = {name: best(curve, costs, least) for name, curve in curves.items() if curve}
    names = sorted(chosen, key=lambda name: (name == _OVERALL, -chosen[name].speedup))
    entries = [
        Row(
            name,
            f"k = {chosen[name].k}, {times(chosen[name].speedup)}",
            dots=[(chosen[name].speedup, "strong" if name == _OVERALL else "accent")],
            total=name == _OVERALL,
        )
        for name in names
    ]
    chart = rows_chart(
        "chart-break-even",
        f"Best draft length by domain at concurrency {least}",
        "One row a domain: the draft length that decodes fastest, and its speed-up. "
        "k = 0 is plain decoding.",
        entries,
        axis([1.0, *(choice.speedup for choice in chosen.values())], lambda v: decimal(v)),
        Mark(1, "plain decoding"),
    )
    numbers = Table(
        f"Best draft length by domain at concurrency {least}",
        ("Domain", "k", "Accept length", "Round cost", "Speed-up"),
        [
            (
                name,
                integer(chosen[name].k),
                decimal(chosen[name].accept_length),
                decimal(chosen[name].round_cost),
                times(chosen[name].speedup),
            )
            for name in names
        ],
    )
    legend = [Key("dot-accent", "domain"), Key("dot-strong", "overall"), Key("mark", "break-even")]
    note = "of the draft lengths whose cost was measured, and of those between them"
    return Figure("Best draft length", chart, numbers, [document.source], note, legend)


def _losing(choices: Sequence[Choice], costs: Costs) -> str:
    measured = ", ".join(map(str, costs.concurrencies))
    losing = loses_from(choices)
    if losing is None:
        return (
            f"At every concurrency that was measured ({measured}) some draft length is faster "
            "than plain decoding. Beyond them nothing is known."
        )
    return (
        f"From concurrency {losing} on no draft length is faster than plain decoding: serve "
        "without the draft there."
    )


def _goal(material: Material, first: Document) -> Facts:
    bench = first.content
    reached, goal = number(bench, "accept_length"), number(bench, "goal_accept_length")
    k = count(bench, "k") or 0
    covered = number(material.coverage.content, "overall") if material.coverage else None
    most = None if covered is None else ceiling(covered, k)
    items = [
        ("Accept length reached", decimal(reached)),
        ("Accept length to be reached", decimal(goal)),
        ("Goal", _met(reached, goal, k, most, interval(bench, "accept_length_ci95"))),
        (f"Most that k = {k} allows", decimal(k + 1.0)),
        ("Most that the map allows", decimal(most)),
        ("Coverage of the map", percent(covered)),
        ("Pay-back", _pay_back(material, number(bench, "speedup"))),
    ]
    sources = [first.source] + ([material.coverage.source] if material.coverage else [])
    return Facts("Goal and pay-back", items, sources)


def _met(
    reached: float | None, goal: float | None, k: int, most: float | None, pair: Interval | None
) -> str:
    """Whether the goal was reached; `most` is what the map allows, `pair` the interval of AL."""
    if reached is None or goal is None:
        return DASH
    if pair and pair[0] >= goal:
        return "reached"
    if goal > k + 1:
        return f"out of reach: a round of {k} draft tokens gives {k + 1} at most"
    if most is not None and most < goal:
        return "out of reach: the map leaves out too many tokens"
    if pair is None:
        return "undecided: too few prompts for an interval"
    if pair[1] < goal:
        return f"missed by {decimal(goal - reached)}"
    return "undecided: the interval holds it"


def _pay_back(material: Material, speedup: float | None) -> str:
    scaling = material.scaling.content if material.scaling else None
    cost, unit = number(scaling, "doubling_cost"), dig(scaling, "cost_unit")
    if cost is None or speedup is None:
        return DASH
    hours = pay_back(cost, speedup)
    if hours is None:
        return "never: decoding is no faster"
    return f"after {integer(hours)} {unit} of serving at batch 1; the build took {integer(cost)}"
