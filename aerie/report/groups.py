"""The section on how the accept length differs by mode and context, and on what was left out."""

from typing import Any

from aerie.report.blocks import Prose, Section, Table
from aerie.report.collect import Document, Material
from aerie.report.results import name_of
from aerie.report.text import (
    between,
    count,
    decimal,
    dig,
    integer,
    interval,
    number,
    plural,
    table,
    words,
)


def groups(material: Material) -> Section:
    """Accept length by mode and by context length, and degenerate answers."""
    section = Section(
        "groups",
        "Mode, context and loops",
        "Groups",
        "Accept length of each mode and length of the prompt. Answers that loop are easy to guess "
        "and count in no figure.",
    )
    for document in material.benches:
        bench = document.content
        if table(bench, "modes") or table(bench, "contexts"):
            section.blocks.append(_groups(document))
        section.blocks.append(Prose(_left_out(bench)))
    return section


def _groups(document: Document) -> Table:
    entries = [
        (
            f"{label}: {name}",
            integer(count(entry, "prompts")),
            integer(count(entry, "rounds")),
            decimal(number(entry, "accept_length")),
            between(interval(entry, "accept_length_ci95")),
        )
        for label, key in (("mode", "modes"), ("prompt tokens", "contexts"))
        for name, entry in table(document.content, key).items()
    ]
    head = ("Group", "Prompts", "Rounds", "Accept length", "95 % interval")
    caption = f"Modes and contexts of {name_of(document.content)}"
    return Table(caption, head, entries, sources=[document.source])


def _left_out(bench: Any) -> str:
    answers = count(bench, "degenerate", "answers")
    if answers is None:
        return f"{name_of(bench)} does not say whether answers were degenerate."
    if not answers:
        return f"No answer of {name_of(bench)} was degenerate."
    found = table(bench, "degenerate", "reasons")
    reasons = ", ".join(f"{integer(found[name])} {words(name)}" for name in sorted(found))
    with_them = decimal(number(bench, "degenerate", "accept_length_with_them"))
    return (
        f"{plural(answers, 'answer')} of {name_of(bench)} left out as degenerate ({reasons}); with "
        f"them the accept length would read {with_them} instead of "
        f"{decimal(number(bench, 'accept_length'))}, {dig(bench, 'run') or 'run'}."
    )
