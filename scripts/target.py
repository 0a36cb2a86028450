"""Build the target: a plain checkpoint folder and its sidecar target.json."""

import argparse
from pathlib import Path

from aerie import command
from aerie.config import TargetSettings
from aerie.target_build import build_target


def main(options: argparse.Namespace) -> None:
    build_target(TargetSettings.model_validate_json(options.settings), options.out)


if __name__ == "__main__":
    arguments = command.parser(__doc__)
    arguments.add_argument("--settings", required=True, help="section `target` as JSON")
    arguments.add_argument("--out", required=True, type=Path, help="folder of the checkpoint")
    command.run(main, arguments)
