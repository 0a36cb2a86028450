"""The command line: `python -m aerie COMMAND`, what a person asks of a build by hand."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from aerie import command
from aerie.config import ROOT, Config, load
from aerie.contracts.sidecar import read_sidecar
from aerie.files import replacing
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
    load(options.file)
    Console().print("OK")


def _schema(options: argparse.Namespace) -> None:
    if not options.write:
        sys.stdout.write(schema_text())
        return
    with replacing(SCHEMA) as scratch:
        scratch.write_text(schema_text(), encoding="utf-8")


def _states_ls(options: argparse.Namespace) -> None:
    index = read_sidecar(options.index, "states")
    table = Table("file", "samples", "bytes", "first", "last", title=str(options.index))
    for name, entry in index["files"].items():
        ids = entry["samples"]
        table.add_row(name, str(len(ids)), f"{entry['bytes']:,}", ids[0], ids[-1])
    console = Console(highlight=False)
    console.print(table)
    facts = {**index["counts"], **index["layers"], **index["provenance"]}
    console.print("\n".join(f"{name}: {value}" for name, value in facts.items()), markup=False)


def _parser() -> argparse.ArgumentParser:
    result = command.parser(__doc__)
    result.prog = "aerie"
    commands = result.add_subparsers(title="commands", required=True, metavar="COMMAND")

    each = commands.add_parser("verify", help="read every artifact again, name what is damaged")
    each.add_argument("work", type=Path, help="the `work` folder of the configuration")
    each.add_argument("--repair", action="store_true", help="remove what is damaged")
    each.set_defaults(main=_verify)

    each = commands.add_parser("config", help="check a configuration")
    each.add_argument("file", type=Path)
    each.set_defaults(main=_config)

    each = commands.add_parser("schema", help="print the JSON Schema of the configuration")
    each.add_argument("--write", action="store_true", help=f"write {SCHEMA.relative_to(ROOT)}")
    each.set_defaults(main=_schema)

    each = commands.add_parser("states", help="look into states")
    actions = each.add_subparsers(required=True, metavar="ACTION")
    each = actions.add_parser("ls", help="list the files of a part")
    each.add_argument("index", type=Path, help="index.json of the part")
    each.set_defaults(main=_states_ls)
    return result


if __name__ == "__main__":
    command.run(lambda options: options.main(options), _parser())
