"""Build the draft's vocabulary from the counts of all datasets."""

import argparse
from pathlib import Path

from aerie import command
from aerie.config import VocabSettings
from aerie.vocab.map import make_map


def main(options: argparse.Namespace) -> None:
    make_map(options.counts, options.target, options.settings, options.out)


if __name__ == "__main__":
    arguments = command.parser(__doc__)
    arguments.add_argument(
        "--counts", type=Path, nargs="+", required=True, help="sidecars of the datasets' counts"
    )
    arguments.add_argument("--target", type=Path, required=True, help="target.json")
    arguments.add_argument(
        "--settings",
        type=VocabSettings.model_validate_json,
        required=True,
        help="the section `vocab` as JSON",
    )
    arguments.add_argument("--out", type=Path, required=True, help="sidecar of the map")
    command.run(main, arguments)
