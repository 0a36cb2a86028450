"""Print what a build found: a table, the verdict and the report's path."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.report.summary import print_summary


def main(options: argparse.Namespace) -> None:
    print_summary(options.bench, options.report)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--bench", type=Path, nargs="+", required=True, help="bench JSON files")
    arguments.add_argument("--report", type=Path, required=True, help="the page to point at")
    run(main, arguments)
