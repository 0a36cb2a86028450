"""The command line: `python -m aerie COMMAND`, what a person asks of a build by hand."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from aerie import command
from aerie.bench.commands import add_commands as add_bench_commands
from aerie.config import ROOT, Config, load
from aerie.doctor.run import run_doctor
from aerie.files import replacing, write_sealed
from aerie.images.commands import add_commands as add_image_commands
from aerie.images.lockfile import digests, read_images
from aerie.lock import differences, digest_settings, git_commit, lock, read_lock
from aerie.prompts.adapters import adapter
from aerie.prompts.contamination import Contamination
from aerie.prompts.inspect import Judge, limits_of, normalise_file
from aerie.prompts.show import adapter_facts, adapter_table, dataset_path, show_rows
from aerie.prompts.source import Source
from aerie.states.commands import add_commands as add_states_commands
from aerie.storage.commands import add_commands as add_storage_commands
from aerie.verify import repair, verify

SCHEMA = ROOT / "schemas" / "config.schema.json"


def schema_text() -> str:
    """The JSON Schema of the configuration, as `schemas/config.schema.json` holds it."""
    return json.dumps(Config.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


def _verify(options: argparse.Namespace) -> None:
    console = Console(highlight=False)
    verdict = verify(options.work)
    if verdict.findings:
        table = Table("artifact", Column("file", overflow="fold"), "problem", title="damaged")
        for finding in verdict.findings:
            name = finding.file.relative_to(options.work)
            table.add_row(finding.artifact, str(name), finding.problem)
        console.print(table)
    checked = ", ".join(f"{count} {name}" for name, count in verdict.checked.items())
    console.print(f"read {checked or 'no artifacts'}; {len(verdict.findings)} damaged")
    if verdict.leftovers:
        console.print(f"{len(verdict.leftovers)} scratch files of killed jobs, which do no harm")
    if not verdict.findings:
        return
    if not options.repair:
        console.print("run again with --repair to remove them, then the build: it makes them again")
        sys.exit(1)
    for path in repair(verdict.findings):
        console.print(f"removed {path}", markup=False, soft_wrap=True)


def _config(options: argparse.Namespace) -> None:
    config = load(options.file)
    if options.show:
        print(getattr(config, options.show))
    else:
        Console().print("OK")


def _schema(options: argparse.Namespace) -> None:
    if not options.write:
        sys.stdout.write(schema_text())
        return
    with replacing(SCHEMA) as scratch:
        scratch.write_text(schema_text(), encoding="utf-8")


def _doctor(options: argparse.Namespace) -> None:
    run_doctor(load(options.config))


def _lock(options: argparse.Namespace) -> None:
    config = load(options.config)
    work = ROOT / config.work
    now = lock(
        work / "target/target.json",
        [work / f"prompts/{name}/selection.json" for name in config.datasets],
        [work / f"candidates/{name}/candidates.json" for name in config.datasets],
        [ROOT / "requirements/run.txt"],
        images=digests(read_images()),
        settings=digest_settings(config),
        commit=git_commit(ROOT),
    )
    path = options.file or work / "lock.json"
    console = Console(highlight=False)
    if not options.check:
        write_sealed(path, now)
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
        return
    table = Table("input", Column("locked", overflow="fold"), Column("now", overflow="fold"))
    for place, locked, found in differences(read_lock(path), now):
        table.add_row(place, str(locked), str(found))
    if table.row_count:
        console.print(table)
        console.print(f"{table.row_count} inputs are not what {path} says", soft_wrap=True)
        sys.exit(1)
    console.print(f"every input is what {path} says", soft_wrap=True)


def _with_server(options: argparse.Namespace) -> None:
    from aerie.engines.sglang.hold import with_server

    sys.exit(with_server(options.phase, load(options.config), ROOT, options.command))


def _adapters(options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(adapter_facts(), indent=2, ensure_ascii=False))
    else:
        Console(highlight=False).print(adapter_table())


def _normalise(options: argparse.Namespace) -> None:
    for outcome in normalise_file(
        options.dataset,
        options.file,
        benchmarks=options.benchmark,
        target=options.target,
        max_chars=options.max_chars,
        max_turns=options.max_turns,
    ):
        # ASCII, since a dropped row may leave half a surrogate pair in its id.
        print(json.dumps(outcome))


def _inspect(options: argparse.Namespace) -> None:
    path = options.path or dataset_path(load(options.config), options.dataset)
    reader = adapter(options.dataset)
    console = Console(highlight=False)
    limits = limits_of(options.target, options.max_chars)
    judge = Judge(reader, limits, Contamination([]), options.max_turns)
    show_rows(console, Source(path, reader), judge, options.rows, options.scan)


def _add_prompt_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    each = commands.add_parser("adapters", help="list the datasets that Aerie can read")
    each.add_argument("--json", action="store_true", help="all that is known, as JSON")
    each.set_defaults(main=_adapters)

    each = commands.add_parser(
        "normalise", help="print what becomes of each row of a JSON Lines file"
    )
    each.add_argument("dataset", help="Hugging Face id of its adapter; `__` may stand for `/`")
    each.add_argument("file", type=Path)
    each.add_argument(
        "--benchmark",
        type=Path,
        action="append",
        help="JSON Lines of prompts not to be trained on; default: _bench*.jsonl beside FILE",
    )
    _add_limits(each)
    each.set_defaults(main=_normalise)

    each = commands.add_parser("inspect", help="show rows of a dataset before and after")
    each.add_argument("dataset", help="Hugging Face id of its adapter")
    each.add_argument(
        "path", type=Path, nargs="?", help="its folder or a file of it; default: as configured"
    )
    each.add_argument("--config", type=Path, default=Path("config.yaml"))
    each.add_argument("--rows", type=int, default=5, help="rows to show of each outcome")
    each.add_argument("--scan", type=int, default=20_000, help="rows to look at")
    _add_limits(each)
    each.set_defaults(main=_inspect)


def _add_limits(each: argparse.ArgumentParser) -> None:
    each.add_argument(
        "--target", type=Path, help="target.json of the target that judges lengths and markers"
    )
    each.add_argument(
        "--max-chars", type=int, default=100_000, help="longest prompt, without a target"
    )
    each.add_argument("--max-turns", type=int, default=1000, help="user turns kept of a row")


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command of `aerie`."""
    result = command.parser(__doc__)
    result.prog = "aerie"
    commands = result.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_prompt_commands(commands)
    add_image_commands(commands)
    add_bench_commands(commands)
    add_states_commands(commands)
    add_storage_commands(commands)

    each = commands.add_parser("verify", help="read every artifact again, name what is damaged")
    each.add_argument("work", type=Path, help="the `work` folder of the configuration")
    each.add_argument("--repair", action="store_true", help="remove what is damaged")
    each.set_defaults(main=_verify)

    each = commands.add_parser("doctor", help="check that this machine can do a build")
    each.add_argument("--config", type=Path, default=Path("config.yaml"))
    each.set_defaults(main=_doctor)

    each = commands.add_parser("lock", help="write every input of a build, pinned, or check it")
    each.add_argument("file", type=Path, nargs="?", help="default: lock.json in the work folder")
    each.add_argument("--config", type=Path, default=Path("config.yaml"))
    each.add_argument("--check", action="store_true", help="compare instead; exit 1 if it differs")
    each.set_defaults(main=_lock)

    each = commands.add_parser("config", help="check a configuration")
    each.add_argument("file", type=Path)
    shown = ("engine", "rolling", "work")
    each.add_argument("--show", choices=shown, help="print this of it instead")
    each.set_defaults(main=_config)

    each = commands.add_parser("schema", help="print the JSON Schema of the configuration")
    each.add_argument("--write", action="store_true", help=f"write {SCHEMA.relative_to(ROOT)}")
    each.set_defaults(main=_schema)

    each = commands.add_parser(
        "with-server", help="run a command beside one SGLang server for a whole phase"
    )
    each.add_argument("phase", choices=("responses", "states"))
    each.add_argument("--config", type=Path, default=Path("config.yaml"))
    each.add_argument("command", nargs="+", metavar="COMMAND", help="after `--`, with its options")
    each.set_defaults(main=_with_server)

    return result


if __name__ == "__main__":
    command.run(lambda options: options.main(options), build_parser())
