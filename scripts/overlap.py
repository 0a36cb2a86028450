"""Write what the datasets of the mix repeat of each other, as JSON and as a page."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.prompts.overlap import write_overlap


def main(options: argparse.Namespace) -> None:
    """Write the overlap of the mix."""
    write_overlap(options.candidates, options.selections, options.out)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    result = parser(__doc__)
    for name, text in {
        "candidates": "candidates.json of each dataset, in priority order",
        "selections": "selection.json of each dataset, in the same order",
    }.items():
        result.add_argument(f"--{name}", type=Path, nargs="+", required=True, help=text)
    result.add_argument("--out", type=Path, required=True, help="overlap.json; the page beside it")
    return result


if __name__ == "__main__":
    run(main, arguments())
