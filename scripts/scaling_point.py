"""One point of a study: train on a fraction of the data, or judge the draft of all."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.train.settings import DraftSettings


def main(options: argparse.Namespace) -> None:
    from aerie.scaling.point import judge_draft, train_point
    from aerie.train.ranks import share_threads
    from aerie.train.stop import requeued

    share_threads(options.threads)
    settings = DraftSettings.model_validate_json(options.settings)
    inputs = (options.states, options.map, options.target)
    if options.draft:
        judge_draft(settings, *inputs, options.draft, options.out)
        return
    with requeued():
        train_point(
            settings, options.divisor, *inputs, options.checkpoints, options.out, options.without
        )


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--settings", required=True, help="one of `drafts`, as JSON")
    arguments.add_argument("--states", type=Path, required=True, help="the manifest of the states")
    arguments.add_argument("--map", type=Path, required=True, help="map.json")
    arguments.add_argument("--target", type=Path, required=True, help="target.json")
    which = arguments.add_mutually_exclusive_group(required=True)
    which.add_argument("--divisor", type=int, help="train on one part in so many")
    which.add_argument("--draft", type=Path, help="draft.json of the draft of all data")
    arguments.add_argument("--without", help="a dataset that is not trained on")
    arguments.add_argument("--checkpoints", type=Path, help="folder of the resume, for training")
    arguments.add_argument("--out", type=Path, required=True, help="the point, as JSON")
    run(main, arguments)
