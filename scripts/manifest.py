"""Gather the indexes of all states into one manifest."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.states.manifest import write_manifest


def main(options: argparse.Namespace) -> None:
    write_manifest(options.states, options.out)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--states", type=Path, nargs="+", required=True, help="index.json files")
    arguments.add_argument("--out", type=Path, required=True, help="the manifest, above them")
    run(main, arguments)
