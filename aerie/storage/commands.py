"""`aerie du` and `aerie gc`: what a work folder takes, and what of it nothing needs."""

import argparse
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from aerie.config import ROOT, load
from aerie.errors import AerieError, ConfigError
from aerie.storage.garbage import Garbage, Kind, find_garbage, remove
from aerie.storage.usage import Missing, Usage, forecast, usage


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add them to the command line."""
    each = commands.add_parser("du", help="what a work folder takes, and what is still to come")
    each.add_argument("work", type=Path, help="the `work` folder of the configuration")
    each.set_defaults(main=_du)

    each = commands.add_parser("gc", help="name what nothing needs any more, or remove it")
    each.add_argument("work", type=Path, help="the `work` folder of the configuration")
    each.add_argument(
        "--config", type=Path, help="a configuration: what it does not name is not needed either"
    )
    each.add_argument(
        "--only", nargs="+", choices=list(Kind), default=list(Kind), help="kinds of files"
    )
    each.add_argument("--list", action="store_true", help="name each file")
    each.add_argument("--delete", action="store_true", help="remove them; default: a dry run")
    each.set_defaults(main=_gc)


def _du(options: argparse.Namespace) -> None:
    console = Console(highlight=False)
    rows = usage(options.work)
    table = Table("phase", "dataset", "files", "size", "tokens", title=str(options.work))
    for phase, group in groupby(rows, key=lambda row: row.phase):
        own = list(group)
        for row in own:
            table.add_row(phase, row.dataset or "", *_amounts([row]))
        if len(own) > 1:
            table.add_row(phase, "all", *_amounts(own), style="bold")
    table.add_section()
    table.add_row("all", "", f"{sum(row.files for row in rows):,}", _size(rows), "")
    console.print(table)
    if missing := forecast(options.work):
        console.print(_missing_table(missing))
    else:
        console.print("nothing is missing of what was selected")


def _amounts(rows: list[Usage]) -> list[str]:
    known = [row.tokens for row in rows if row.tokens is not None]
    tokens = f"{sum(known):,}" if known else "—"
    return [f"{sum(row.files for row in rows):,}", _size(rows), tokens]


def _size(rows: list[Usage]) -> str:
    return decimal(sum(row.bytes for row in rows))


def _missing_table(missing: list[Missing]) -> Table:
    table = Table("phase", "dataset", "parts", "tokens", "size", "by", title="still to come")
    for row in missing:
        table.add_row(row.phase, row.dataset, *_forecast([row]), row.basis)
    for phase, group in groupby(missing, key=lambda row: row.phase):
        own = list(group)
        if len(own) > 1:
            table.add_row(phase, "all", *_forecast(own), "", style="bold")
    return table


def _forecast(rows: list[Missing]) -> list[str]:
    """Parts, tokens and size; a sum with something unknown in it is unknown."""
    parts, tokens, sizes = zip(*((row.parts, row.tokens, row.bytes) for row in rows), strict=True)
    return [
        "?" if None in values else words(sum(values))
        for values, words in ((parts, "{:,}".format), (tokens, "{:,}".format), (sizes, decimal))
    ]


def _gc(options: argparse.Namespace) -> None:
    config = load(options.config) if options.config else None
    if config and (ROOT / config.work).resolve() != options.work.resolve():
        raise ConfigError(
            f"{options.config} is of another work folder",
            saw=config.work,
            expected=str(options.work),
            remedy="name the configuration that this folder was built with",
        )
    with no_build(ROOT) if options.delete else nullcontext():
        found = find_garbage(options.work, config)
        found = [entry for entry in found if entry.kind in options.only]
        if options.delete:
            remove(options.work, found)
        _print_garbage(found, options)


def _print_garbage(found: list[Garbage], options: argparse.Namespace) -> None:
    console = Console(highlight=False)
    if not found:
        console.print("everything is needed, or younger than an hour")
        return
    table = Table("kind", "folder", "why", "files", "size", title=str(options.work))
    groups: dict[tuple[str, str, str], list[int]] = {}
    for entry in found:
        key = (entry.kind, str(entry.path.parent), entry.why)
        groups.setdefault(key, []).append(entry.bytes)
    for (kind, folder, why), sizes in sorted(groups.items()):
        table.add_row(kind, folder, why, f"{len(sizes):,}", decimal(sum(sizes)))
    console.print(table)
    if options.list:
        console.print("\n".join(str(entry.path) for entry in found), markup=False, soft_wrap=True)
    total = f"{len(found):,} files, {decimal(sum(entry.bytes for entry in found))}"
    console.print(
        f"removed {total}" if options.delete else f"{total}; nothing was removed: --delete does"
    )


@contextmanager
def no_build(root: Path) -> Iterator[None]:
    """Hold the lock that `make` holds while it builds; a build that starts now waits.

    Raises:
        AerieError: a build holds it.
    """
    lock = root / ".snakemake" / "build.lock"
    lock.parent.mkdir(exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AerieError(
                "a build is running in this checkout",
                remedy="wait for its end, or leave --delete out to see what could go",
            ) from error
        yield
    finally:
        os.close(descriptor)
