"""Runs all checks, prints them, and refuses what cannot work."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from aerie.config import ROOT, Config
from aerie.doctor.access import examine_hub, examine_images
from aerie.doctor.finding import Finding
from aerie.doctor.host import (
    examine_fit,
    examine_gpus,
    examine_limits,
    examine_port,
    examine_runtimes,
    examine_sglang,
    read_gpus,
)
from aerie.doctor.storage import examine_plan, examine_speed, examine_target, weights_bytes
from aerie.errors import GateError

_COLOURS = {"ok": "green", "note": "yellow", "miss": "red"}


def examine(config: Config) -> Iterator[Finding]:
    """Everything that a build of `config` needs of this machine and of the network."""
    if config.engine == "sglang":
        gpus = read_gpus()
        yield from examine_gpus(gpus, config.plan.gpus_per_host)
        yield from examine_target(config)
        yield from examine_fit(weights_bytes(config), [] if isinstance(gpus, str) else gpus)
        yield from examine_limits()
        yield from examine_sglang(config.sglang.python)
        if config.sglang.port:
            yield from examine_port(config.sglang.host, config.sglang.port)
    else:
        yield from examine_target(config)
    yield from examine_runtimes()
    yield from examine_images(config)
    yield from examine_plan(config)
    yield from examine_speed(ROOT / config.work)
    yield from examine_hub(config)


def run_doctor(config: Config, console: Console | None = None) -> None:
    """Print what was found.

    Raises:
        GateError: something is missing without which the build would fail.
    """
    console = console or Console(highlight=False)
    findings = list(examine(config))
    table = Table("", "what", Column("saw", overflow="fold"), Column("remedy", overflow="fold"))
    for finding in findings:
        mark = Text(finding.level, style=_COLOURS[finding.level])
        table.add_row(mark, finding.name, Text(finding.saw), Text(finding.remedy))
    console.print(table)
    refuse(findings)


def refuse(findings: Sequence[Finding]) -> None:
    """Stop if anything is missing.

    Raises:
        GateError: it lists every miss with its remedy.
    """
    misses = [finding for finding in findings if finding.level == "miss"]
    if not misses:
        return
    lines = [f"    - {miss.name}: {miss.saw}\n      {miss.remedy}" for miss in misses]
    raise GateError(
        "doctor",
        f"{len(misses)} thing{'s'[: len(misses) > 1]} missing on this machine\n" + "\n".join(lines),
        remedy="all of the above; without a GPU, `make demo` runs the workflow on a small model",
    )
