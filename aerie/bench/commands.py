"""`aerie bench` and `aerie advise`: questions about what was measured."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aerie.advise import advise, choose
from aerie.bench.breakeven import measured_chains, read_costs
from aerie.bench.compare import compare, read_bench, size
from aerie.bench.suite import read_suite
from aerie.config import ROOT, load
from aerie.errors import DataError
from aerie.files import digest_file
from aerie.target import read_target

_SGLANG = "0.5.23"


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add them to the command line."""
    each = commands.add_parser("bench", help="compare benches, size a suite, look into one")
    actions = each.add_subparsers(required=True, metavar="ACTION")
    each = actions.add_parser("compare", help="the difference of two drafts, paired by prompt")
    each.add_argument("before", type=Path, help="bench JSON")
    each.add_argument("after", type=Path, help="bench JSON of the other draft, same suite")
    each.set_defaults(main=_compare)

    each = actions.add_parser("size", help="how many prompts it takes to see a difference")
    each.add_argument("bench", type=Path, help="bench JSON that shows how prompts differ")
    each.add_argument("--difference", type=float, default=0.05, help="of accept length")
    each.add_argument("--other", type=Path, help="bench JSON of another draft on the same suite")
    each.set_defaults(main=_size)

    each = actions.add_parser("suite", help="read a suite: prompts of each domain, digest")
    each.add_argument("suite", type=Path)
    each.set_defaults(main=_suite)

    each = commands.add_parser("advise", help="how to serve at a given concurrency")
    each.add_argument("--concurrency", type=int, required=True, help="requests at the same time")
    each.add_argument("--config", type=Path, default=Path("config.yaml"))
    each.add_argument("--run", help="the run of `drafts`; default: the first")
    each.add_argument("--domain", help="one domain of the bench; default: all prompts")
    each.add_argument("--costs", type=Path, help="table of round costs, docs/bench.md")
    each.add_argument("--sglang", default=_SGLANG, help="version of SGLang that the command is for")
    each.set_defaults(main=_advise)


def _compare(options: argparse.Namespace) -> None:
    # Without rules, so that eighty columns hold a line.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("accept length", overflow="fold")
    for name in ("prompts", "before", "after"):
        table.add_column(name, justify="right")
    table.add_column("difference [95 %]", no_wrap=True)
    table.add_column("", no_wrap=True)
    for found in compare(read_bench(options.before), read_bench(options.after)):
        pair = found.interval
        low_high = f"[{pair[0]:+.3f}, {pair[1]:+.3f}]" if pair else "—"
        table.add_row(
            Text(found.name), str(found.prompts), f"{found.before:.3f}", f"{found.after:.3f}",
            Text(f"{found.difference:+.3f} {low_high}"), found.words,
        )  # fmt: skip
    Console(highlight=False).print(table)


def _size(options: argparse.Namespace) -> None:
    if options.difference <= 0:
        raise DataError("--difference must be above 0", saw=options.difference)
    other = read_bench(options.other) if options.other else None
    found = size(read_bench(options.bench), options.difference, other)
    table = Table("to", "prompts", title=f"accept length, a difference of {options.difference:g}")
    table.add_row(f"know one draft's to ± {options.difference:g}", f"{found.interval:,}")
    table.add_row("tell two drafts apart, each on prompts of its own", f"{found.unpaired:,}")
    paired = f"{found.paired:,}" if found.paired else "pass --other to know"
    table.add_row("tell two drafts apart on the same prompts", paired)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"Known from {found.known_from} prompts, whose deviation is {found.spread:.3f}. A "
        "difference of this size is seen at 95 % in four of five tries."
    )


def _suite(options: argparse.Namespace) -> None:
    prompts = read_suite(options.suite)
    table = Table("domain", "prompts", "answers", title=str(options.suite))
    for domain in sorted({prompt.domain for prompt in prompts}):
        some = [prompt for prompt in prompts if prompt.domain == domain]
        table.add_row(domain, f"{len(some):,}", f"{sum(p.answers for p in some):,}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{len(prompts):,} prompts, xxh3 {digest_file(options.suite)}")


def _advise(options: argparse.Namespace) -> None:
    config = load(options.config)
    run = options.run or next(iter(config.drafts))
    if run not in config.drafts:
        raise DataError(f"no run is called {run}", expected=f"one of {', '.join(config.drafts)}")
    work = ROOT / config.work
    paths = [work / f"bench/{run}/{suite}.json" for suite in config.bench.names]
    benches = {f"{run}/{path.stem}": read_bench(path) for path in paths}
    tables = read_costs(options.costs) if options.costs else []
    choice = choose(benches, options.concurrency, options.domain, tables)
    target = read_target(work / "target/target.json")
    engine = "sglang" if options.costs else next(iter(benches.values()))["engine"]
    found = advise(choice, engine, target, work / f"draft/{run}", config.sglang, options.sglang)
    estimated = choice.k and choice.k not in measured_chains(next(iter(benches.values())))
    console = Console(highlight=False)
    console.print(found.words, soft_wrap=True)
    if estimated:
        console.print(
            f"The accept length of k = {choice.k} is an estimate from longer chains: "
            f"`bench.chains: [{choice.k}]` measures it on SGLang.",
            soft_wrap=True,
        )
    # To be copied, so it must not be wrapped or read as markup.
    console.print(found.command, markup=False, soft_wrap=True)
