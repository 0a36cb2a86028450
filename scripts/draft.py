"""Train a draft on states and export it as SGLang reads it. Resumes from its last checkpoint."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.train.settings import DraftSettings


def main(options: argparse.Namespace) -> None:
    from aerie.train.ranks import share_threads
    from aerie.train.run import train
    from aerie.train.source import TrainingSource
    from aerie.train.stop import requeued

    share_threads(options.threads)
    with requeued():
        train(
            DraftSettings.model_validate_json(options.settings),
            TrainingSource.read(options.samples)
            if options.samples
            else TrainingSource.of_manifest(options.states),
            options.map,
            options.target,
            options.checkpoints,
            options.out,
            options.tracking,
            options.until,
        )


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--settings", required=True, help="one of `drafts`, as JSON")
    source = arguments.add_mutually_exclusive_group(required=True)
    source.add_argument("--states", type=Path, help="the manifest of the states")
    source.add_argument(
        "--samples", type=Path, help="of scripts/rolling.py: where samples will lie"
    )
    arguments.add_argument("--until", type=int, help="end after this step, with a checkpoint")
    arguments.add_argument("--map", type=Path, required=True, help="map.json")
    arguments.add_argument("--target", type=Path, required=True, help="target.json")
    arguments.add_argument("--checkpoints", type=Path, required=True, help="folder of the resume")
    arguments.add_argument("--tracking", type=Path, help="folder where the run can be watched")
    arguments.add_argument("--out", type=Path, required=True, help="draft.json, written last")
    run(main, arguments)
