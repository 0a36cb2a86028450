"""Compare drafts of the whole mix with drafts that lack a dataset."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.scaling.mix import write_mix


def main(options: argparse.Namespace) -> None:
    write_mix(options.points, options.without, options.out)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--points", type=Path, nargs="+", required=True, help="of the whole mix")
    arguments.add_argument(
        "--without", type=Path, nargs="+", required=True, help="points that lack a dataset"
    )
    arguments.add_argument("--out", type=Path, required=True, help="mix_study.json")
    run(main, arguments)
