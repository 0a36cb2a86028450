"""Compare sizes of the map: coverage, accept length lost, time of the head."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.scaling.settings import MapStudySettings
from aerie.train.settings import DraftSettings
from aerie.vocab.study import write_study


def main(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(options.threads)
    write_study(
        MapStudySettings.model_validate_json(options.settings),
        DraftSettings.model_validate_json(options.recipe),
        options.states,
        options.map,
        options.counts,
        options.target,
        options.draft,
        options.out,
    )


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--settings", required=True, help="`map_study`, as JSON")
    arguments.add_argument("--recipe", required=True, help="the draft's settings, as JSON")
    arguments.add_argument("--states", type=Path, required=True, help="the manifest of the states")
    arguments.add_argument("--map", type=Path, required=True, help="map.json")
    arguments.add_argument("--counts", type=Path, nargs="+", required=True, help="counts sidecars")
    arguments.add_argument("--target", type=Path, required=True, help="target.json")
    arguments.add_argument("--draft", type=Path, required=True, help="draft.json of the draft")
    arguments.add_argument("--out", type=Path, required=True, help="map_study.json")
    run(main, arguments)
