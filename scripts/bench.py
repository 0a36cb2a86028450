"""Measure a draft against plain decoding on one suite, and stop at the accept gate."""

import argparse
from pathlib import Path

from aerie.command import parser, run
from aerie.config import BenchSettings


def main(options: argparse.Namespace) -> None:
    from aerie.bench.run import bench

    bench(
        BenchSettings.model_validate_json(options.settings),
        options.run,
        options.suite,
        options.prompts,
        options.draft,
        options.target,
        options.threads,
        options.out,
        options.engine,
        (options.log or options.out).with_suffix(".servers"),
    )


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--settings", required=True, help="`bench`, as JSON")
    arguments.add_argument("--run", required=True, help="name of the draft's run")
    arguments.add_argument("--suite", required=True, help="name of the suite")
    arguments.add_argument("--prompts", type=Path, required=True, help="the suite's JSONL")
    arguments.add_argument("--draft", type=Path, required=True, help="draft.json")
    arguments.add_argument("--target", type=Path, required=True, help="target.json")
    arguments.add_argument("--engine", default="transformers", help="what serves the draft")
    arguments.add_argument("--out", type=Path, required=True, help="the bench JSON")
    run(main, arguments)
