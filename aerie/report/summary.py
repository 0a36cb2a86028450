"""What a build ends with on the terminal: the table, the verdict in words, the page's path."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aerie.files import read_json
from aerie.report.text import (
    decimal,
    dig,
    interval,
    number,
    significant,
    table,
    times,
    with_interval,
)
from aerie.report.verdict import verdict

_HEAD = ("AL [95 % interval]", "plain\ntok/s", "draft\ntok/s", "speed-up", "R")
_STYLES = {"pays": "green", "loses": "red", "unclear": "yellow", "unknown": "dim"}


def print_summary(benches: list[Path], report: Path, console: Console | None = None) -> None:
    """Print each bench as a table, its verdict and where the report is.

    Raises:
        ContractError: a bench is missing or is not JSON.
    """
    console = console or Console(highlight=False)
    for path in benches:
        bench = read_json(path)
        console.print()
        console.print(summary_table(bench))
        found = verdict(bench)
        console.print()
        console.print(Text(found.words or found.sentence, style=_STYLES[found.state]))
    console.print()
    # A path is copied from here, so it must not be wrapped, styled or read as markup.
    console.print(Text(f"Report: {report}"), soft_wrap=True)


def summary_table(bench: Any) -> Table:
    """Accept length, speeds, speed-up and round cost, overall and for each domain."""
    title = f"{dig(bench, 'run') or 'run'} / {dig(bench, 'suite') or 'suite'}"
    result = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    result.add_column("domain", overflow="fold")
    for name in _HEAD:
        result.add_column(name, justify="right", no_wrap=True)
    domains = table(bench, "domains")
    for name in sorted(domains, key=lambda name: -(number(domains, name, "accept_length") or 0)):
        entry = domains[name]
        speeds = (number(entry, "plain_tokens_per_s"), number(entry, "draft_tokens_per_s"))
        result.add_row(Text(name), *_cells(entry, *speeds))
    overall = (number(bench, "plain", "tokens_per_s"), number(bench, "draft", "tokens_per_s"))
    result.add_section()
    result.add_row("overall", *_cells(bench, *overall), style="bold")
    return result


def _cells(entry: Any, plain: float | None, draft: float | None) -> Iterator[Text]:
    cells = (
        with_interval(number(entry, "accept_length"), interval(entry, "accept_length_ci95")),
        significant(plain),
        significant(draft),
        times(number(entry, "speedup")),
        decimal(number(entry, "round_cost")),
    )
    # As text, since rich would read brackets in a string as markup.
    return map(Text, cells)
