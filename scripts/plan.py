"""Plan a build: what it needs, whether it fits, what would make it fit."""

import argparse
from pathlib import Path

from aerie import command
from aerie.config import Config
from aerie.plan.run import make_plan


def main(options: argparse.Namespace) -> None:
    make_plan(options.settings, options.out)


if __name__ == "__main__":
    arguments = command.parser(__doc__)
    arguments.add_argument(
        "--settings",
        type=Config.model_validate_json,
        required=True,
        help="the whole configuration as JSON",
    )
    arguments.add_argument(
        "--out", type=Path, required=True, help="plan.json; plan.md is written beside it"
    )
    command.run(main, arguments)
