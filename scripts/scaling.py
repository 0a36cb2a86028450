"""Fit curves through the points of the scaling study and say whether more data would help."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.scaling.result import write_scaling
from aerie.scaling.settings import ScalingSettings


def main(options: argparse.Namespace) -> None:
    settings = ScalingSettings.model_validate_json(options.settings)
    write_scaling(settings, options.points, options.states, options.work, options.gpus, options.out)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--settings", required=True, help="`scaling`, as JSON")
    arguments.add_argument("--points", type=Path, nargs="+", required=True, help="the points")
    arguments.add_argument("--states", type=Path, required=True, help="the manifest of the states")
    arguments.add_argument("--work", type=Path, required=True, help="where benchmarks/ lies")
    arguments.add_argument("--gpus", type=int, required=True, help="GPUs of a job; 0: a CPU alone")
    arguments.add_argument("--out", type=Path, required=True, help="scaling.json")
    run(main, arguments)
