"""Write the report of a build: one self-contained HTML page."""

import argparse
import dataclasses
from pathlib import Path

from aerie.command import parser, run
from aerie.report.collect import Inputs
from aerie.report.page import write_report


def main(options: argparse.Namespace) -> None:
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Inputs)}
    write_report(Inputs(**given), options.out)


if __name__ == "__main__":
    arguments = parser(__doc__)
    bench = "bench JSON files; the first one gives the verdict"
    arguments.add_argument("--bench", type=Path, nargs="+", required=True, help=bench)
    for name, text in {
        "draft": "draft.json of the run",
        "eval": "eval.json of the run",
        "train": "train.jsonl of the run",
        "coverage": "coverage.json of the map",
        "map": "map.json",
        "target": "target.json",
        "lock": "lock.json",
        "scaling": "scaling.json of `make scaling`",
        "map_study": "map_study.json of `make map-study`",
        "mix_study": "mix_study.json of `make mix-study`",
        "rolling": "rolling.json of the run, where its states were captured as it was trained",
    }.items():
        arguments.add_argument(f"--{name.replace('_', '-')}", type=Path, help=text)
    for name, text in {
        "selections": "selection.json of each dataset",
        "candidates": "candidates.json of each dataset",
        "licences": "licence.json of each dataset",
        "responses": "sidecars of the responses' parts",
        "states": "index.json of the states' parts",
    }.items():
        arguments.add_argument(f"--{name}", type=Path, nargs="*", default=[], help=text)
    arguments.add_argument("--out", type=Path, required=True, help="the page, index.html")
    run(main, arguments)
