"""Capture the hidden states of one part of responses."""

import argparse
from pathlib import Path

from aerie import command
from aerie.states.run import capture_part
from aerie.states.settings import StatesSettings


def main(options: argparse.Namespace) -> None:
    capture_part(
        options.responses,
        options.target,
        options.settings,
        options.engine,
        options.out,
        greedy=options.greedy,
        threads=options.threads,
    )


if __name__ == "__main__":
    arguments = command.parser(__doc__)
    arguments.add_argument("--responses", type=Path, required=True, help="sidecar of the part")
    arguments.add_argument("--target", type=Path, required=True, help="target.json")
    arguments.add_argument(
        "--settings",
        type=StatesSettings.model_validate_json,
        required=True,
        help="the section `states` as JSON",
    )
    arguments.add_argument("--engine", required=True, help="what runs the target")
    command.add_answers(arguments)
    arguments.add_argument("--out", type=Path, required=True, help="index.json of the part")
    command.run(main, arguments)
