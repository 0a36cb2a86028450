"""Train a draft on states and export it as SGLang reads it. Resumes from its last checkpoint."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.train.settings import DraftSettings


def main(options: argparse.Namespace) -> None:
    from aerie.train.ranks import share_threads
    from aerie.train.run import train
    from aerie.train.stop import requeued

    share_threads(options.threads)
    with requeued():
        train(
            DraftSettings.model_validate_json(options.settings),
            options.states,
            options.map,
            options.target,
            options.checkpoints,
            options.out,
            options.tracking,
        )


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--settings", required=True, help="one of `drafts`, as JSON")
    arguments.add_argument("--states", type=Path, required=True, help="the manifest of the states")
    arguments.add_argument("--map", type=Path, required=True, help="map.json")
    arguments.add_argument("--target", type=Path, required=True, help="target.json")
    arguments.add_argument("--checkpoints", type=Path, required=True, help="folder of the resume")
    arguments.add_argument("--tracking", type=Path, help="folder where the run can be watched")
    arguments.add_argument("--out", type=Path, required=True, help="draft.json, written last")
    run(main, arguments)
