"""Count the supervised tokens of a dataset."""

import argparse
from pathlib import Path

from aerie import command
from aerie.vocab.counts import count_dataset


def main(options: argparse.Namespace) -> None:
    count_dataset(options.responses, options.target, options.out)


if __name__ == "__main__":
    arguments = command.parser(__doc__)
    arguments.add_argument(
        "--responses", type=Path, nargs="+", required=True, help="sidecars of the dataset's parts"
    )
    arguments.add_argument("--target", type=Path, required=True, help="target.json")
    arguments.add_argument(
        "--out", type=Path, required=True, help="sidecar of the counts, named after the dataset"
    )
    command.run(main, arguments)
