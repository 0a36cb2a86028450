"""Let the target answer the prompts of one part."""

import argparse
from pathlib import Path

from aerie import command
from aerie.config import ResponsesSettings
from aerie.responses.run import Job, answer


def main(options: argparse.Namespace) -> None:
    answer(
        Job(
            prompts=options.prompts,
            target=options.target,
            settings=ResponsesSettings.model_validate_json(options.settings),
            engine=options.engine,
            seed=options.seed,
            journal=options.journal,
            out=options.out,
            threads=options.threads,
        )
    )


if __name__ == "__main__":
    arguments = command.parser(__doc__)
    arguments.add_argument("--prompts", required=True, type=Path, help="sidecar of the prompts")
    arguments.add_argument("--target", required=True, type=Path, help="target.json")
    arguments.add_argument("--settings", required=True, help="section `responses` as JSON")
    arguments.add_argument("--engine", default="transformers", help="what runs the target")
    arguments.add_argument("--seed", default=0, type=int, help="seed of sampled answers")
    arguments.add_argument(
        "--journal", required=True, type=Path, help="answers already paid for; survives a rerun"
    )
    arguments.add_argument("--out", required=True, type=Path, help="sidecar of the responses")
    command.run(main, arguments)
