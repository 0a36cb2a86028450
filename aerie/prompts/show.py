"""Tables for a person: all adapters, and rows of a dataset before and after."""

import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text

from aerie.config import Config
from aerie.contracts.prompts import NOTES
from aerie.errors import DataError
from aerie.prompts.adapters import Category, adapters
from aerie.prompts.inspect import Judge, main_flag
from aerie.prompts.meanings import meaning
from aerie.prompts.normalise import Normalised, Rejected
from aerie.prompts.read import as_text
from aerie.prompts.source import Row, Source

_CHARACTERS = 700


def adapter_facts() -> list[dict[str, Any]]:
    """What every adapter says of its dataset."""
    return [
        {
            "id": reader.id,
            "category": reader.category,
            "licence": reader.licence,
            "share_alike": reader.share_alike,
            "gated": reader.gated,
            "attribution": reader.attribution,
            "native": reader.native,
            "stratum": reader.stratum,
            "columns": list(reader.wanted()),
            "files": list(reader.files),
        }
        for reader in adapters().values()
    ]


def adapter_table() -> Table:
    """The same as a table, by category."""
    table = Table(Column("dataset and columns", overflow="fold"), "licence", "notes")
    facts = sorted(adapter_facts(), key=lambda one: list(Category).index(one["category"]))
    for category, entries in itertools.groupby(facts, key=lambda one: one["category"]):
        table.add_row(Text(category, "bold"))
        for one in entries:
            notes = {
                "gated": one["gated"],
                "share-alike": one["share_alike"],
                f"spread by {one['stratum']}": one["stratum"],
                f"claims answers of {one['native']}": one["native"],
            }
            table.add_row(
                Text.assemble(one["id"], ("\n  " + ", ".join(one["columns"]), "dim")),
                one["licence"],
                "; ".join(note for note, holds in notes.items() if holds),
            )
        table.add_section()
    return table


def dataset_path(config: Config, dataset: str) -> Path:
    """Where the mix of a configuration has a dataset, by its adapter or by its name there.

    Raises:
        DataError: it has no such dataset.
    """
    for name, entry in config.datasets.items():
        if dataset in (name, entry.adapter):
            return Path(entry.path or f"{config.work}/sources/{name}/files")
    raise DataError(
        f"the configuration has no dataset {dataset}",
        expected="one of " + ", ".join(entry.adapter for entry in config.datasets.values()),
        remedy="give a file or a folder after the dataset, or another --config",
    )


def show_rows(console: Console, source: Source, judge: Judge, rows: int, scan: int) -> None:
    """Print some rows of each outcome, as they are in the dataset and as they are asked.

    Up to `scan` rows are looked at, from all over the files; `rows` of each outcome are shown.
    """
    counts: Counter[str] = Counter()
    shown: dict[str, list[tuple[Row, Normalised | Rejected]]] = defaultdict(list)
    for row in _from_all_over(source, scan):
        outcome = _outcome(row, judge)
        name = _name(outcome)
        counts[name] += 1
        if len(shown[name]) < rows:
            shown[name].append((row, outcome))
    for name, examples in sorted(shown.items(), key=lambda pair: -counts[pair[0]]):
        share = counts[name] / counts.total()
        words = meaning(name.partition(" ")[2])
        title = f"{name}: {counts[name]:,} of {counts.total():,} rows ({share:.1%})"
        table = Table(title=title, caption=words, show_lines=True, expand=True)
        for column, ratio in (("row", 1), ("before", 4), ("after", 4)):
            table.add_column(column, ratio=ratio, overflow="fold")
        for row, outcome in examples:
            table.add_row(row.id.rpartition("/")[2], _before(row), _after(outcome))
        console.print(table)
    if not counts:
        console.print(f"there are no rows in {source.folder}")


def _from_all_over(source: Source, scan: int) -> Iterator[Row]:
    slices = source.slices()
    random.Random(0).shuffle(slices)
    looked_at = 0
    for piece in slices:
        for row in source.rows(piece, set()):
            if looked_at == scan:
                return
            looked_at += 1
            yield row


def _outcome(row: Row, judge: Judge) -> Normalised | Rejected:
    if row.value is None:
        return Rejected(row.reason, row.problem)
    try:
        return judge.prompt(row.value)
    except Rejected as no:
        return no


def _name(outcome: Normalised | Rejected) -> str:
    if isinstance(outcome, Rejected):
        return f"dropped {outcome.reason}"
    flag = main_flag(outcome.flags)
    return f"repaired {flag}" if flag else "kept"


def _before(row: Row) -> Syntax | Text:
    if row.value is None:
        return Text(_cut(row.text))
    there = {name: value for name, value in row.value.items() if value is not None}
    text = as_text(there, indent=1)
    return Syntax(_cut(_printable(text)), "json", background_color="default", word_wrap=True)


def _after(outcome: Normalised | Rejected) -> Group:
    if isinstance(outcome, Rejected):
        return Group(Text(str(outcome.reason), "bold red"), Text(_printable(outcome.detail)))
    lines = []
    if outcome.system:
        lines.append(Text.assemble(("system  ", "bold"), _cut(outcome.system)))
    for number, turn in enumerate(outcome.turns, 1):
        lines.append(Text.assemble((f"user {number}  ", "bold"), _cut(turn)))
    if outcome.tools:
        names = [tool["function"]["name"] for tool in json.loads(outcome.tools)]
        lines.append(Text.assemble(("tools  ", "bold"), _cut(", ".join(names))))
    for flag in outcome.flags:
        style = "dim" if flag in NOTES else "yellow"
        lines.append(Text(f"{flag}: {meaning(flag)}", style))
    return Group(*lines)


def _cut(text: str) -> str:
    more = len(text) - _CHARACTERS
    return text if more <= 0 else f"{text[:_CHARACTERS]}… ({more:,} characters more)"


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
