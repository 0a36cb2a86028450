"""`aerie states`: what was captured, and the same for other projects."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from aerie.contracts.sidecar import read_sidecar
from aerie.states.export import FORMATS, export
from aerie.states.manifest import find_indexes
from aerie.states.show import file_facts, sample_facts
from aerie.vocab.import_map import import_map


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add them to the command line."""
    each = commands.add_parser("states", help="look into states, give them to other projects")
    actions = each.add_subparsers(required=True, metavar="ACTION")
    each = actions.add_parser("ls", help="list the parts below a folder, or the files of one part")
    each.add_argument("path", type=Path, help="index.json, manifest.json, or a folder above them")
    each.set_defaults(main=_ls)

    each = actions.add_parser("show", help="what a states file or one of its samples holds")
    each.add_argument("file", type=Path, help="a states file")
    each.add_argument("sample", nargs="?", help="number or id of a sample")
    each.set_defaults(main=_show)

    each = actions.add_parser("export", help="write a file for each sample, as others read them")
    each.add_argument("path", type=Path, help="index.json, manifest.json, or a folder above them")
    each.add_argument("--format", choices=sorted(FORMATS), required=True)
    each.add_argument("--out", type=Path, required=True, help="an empty folder, or this export's")
    each.add_argument(
        "--target", type=Path, help="target.json; speculators wants states before the norm"
    )
    each.set_defaults(main=_export)

    each = actions.add_parser("import-map", help="take the map of SpecForge's vocab_mapping.pt")
    each.add_argument("file", type=Path, help="vocab_mapping.pt")
    each.add_argument("--out", type=Path, required=True, help="folder of the map")
    each.add_argument("--target", type=Path, help="target.json whose vocabulary it must have")
    each.set_defaults(main=_import_map)


def _ls(options: argparse.Namespace) -> None:
    indexes = find_indexes(options.path)
    console = Console(highlight=False)
    if len(indexes) == 1:
        _ls_part(console, indexes[0])
        return
    table = Table("part", "files", "samples", "tokens", "supervised", "size")
    total = dict.fromkeys(("samples", "tokens", "supervised", "bytes"), 0)
    files = 0
    for path in indexes:
        index = read_sidecar(path, "states")
        counts = index["counts"]
        total = {name: value + counts[name] for name, value in total.items()}
        files += len(index["files"])
        part = f"{path.parent.parent.name}/{path.parent.name}"
        table.add_row(part, str(len(index["files"])), *_figures(counts))
    table.add_section()
    table.add_row(f"{len(indexes)} parts", str(files), *_figures(total))
    console.print(table)


def _figures(counts: dict[str, int]) -> list[str]:
    share = f"{counts['supervised'] / counts['tokens']:.1%}" if counts["tokens"] else "—"
    return [f"{counts['samples']:,}", f"{counts['tokens']:,}", share, decimal(counts["bytes"])]


def _ls_part(console: Console, path: Path) -> None:
    index = read_sidecar(path, "states")
    table = Table("file", "samples", "bytes", "first", "last", title=str(path))
    for name, entry in index["files"].items():
        ids = entry["samples"]
        table.add_row(name, str(len(ids)), f"{entry['bytes']:,}", ids[0], ids[-1])
    console.print(table)
    facts = {**index["counts"], **index["layers"], **index["provenance"]}
    console.print("\n".join(f"{name}: {value}" for name, value in facts.items()), markup=False)


def _show(options: argparse.Namespace) -> None:
    console = Console(highlight=False)
    if options.sample is not None:
        _show_sample(console, options.file, options.sample)
        return
    facts = file_facts(options.file)
    table = Table("tensor", "shape", "xxh3", title=str(options.file))
    for name, shape, digest in facts.tensors:
        table.add_row(name, str(list(shape)), digest)
    console.print(table)
    low, middle, high = facts.lengths
    share = f"{facts.supervised / facts.tokens:.1%}" if facts.tokens else "—"
    lines = [
        f"contract {facts.contract}, key {facts.key}",
        f"{facts.bytes:,} bytes, {facts.samples:,} samples, {facts.tokens:,} tokens, "
        f"{share} supervised",
        f"tokens of a sample: {low:,} to {high:,}, median {middle:,g}",
        f"aux: {', '.join(facts.layers)}",
    ]
    console.print("\n".join(lines), markup=False)


def _show_sample(console: Console, file: Path, sample: str) -> None:
    facts = sample_facts(file, sample)
    name = f"sample {facts.number}" + (f", {facts.id}" if facts.id else "")
    table = Table("states", "mean norm", "least", "largest", title=name)
    for layer, *norms in facts.norms:
        table.add_row(layer, *(f"{norm:,.2f}" for norm in norms))
    console.print(table)
    if facts.shares:
        table = Table("next token", "mean share", "least", "largest")
        for each, *shares in facts.shares:
            table.add_row(each, *(f"{share:.4f}" for share in shares))
        console.print(table)
    share = f"{facts.supervised / facts.tokens:.1%}" if facts.tokens else "—"
    console.print(f"{facts.tokens:,} ids, {facts.supervised:,} supervised ({share})")


def _export(options: argparse.Namespace) -> None:
    done = export(find_indexes(options.path), options.format, options.out, options.target)
    console = Console(highlight=False)
    console.print(
        f"{done['samples']:,} samples, {done['tokens']:,} tokens, in {options.out}",
        markup=False,
        soft_wrap=True,
    )


def _import_map(options: argparse.Namespace) -> None:
    vocab = import_map(options.file, options.out, options.target)
    console = Console(highlight=False)
    console.print(
        f"{len(vocab.target_ids):,} of {vocab.vocab_size:,} ids, in {options.out / 'map.json'}",
        markup=False,
        soft_wrap=True,
    )
