"""Write lock.json: every input of a build pinned."""

import argparse
import json
from pathlib import Path

from aerie.command import parser, run
from aerie.images.lockfile import digests, read_images
from aerie.lock import UNKNOWN_COMMIT, write_lock


def main(options: argparse.Namespace) -> None:
    write_lock(
        options.target,
        options.selections,
        options.candidates,
        options.requirements,
        options.out,
        images=digests(read_images(options.images.parents[1])),
        settings=json.loads(options.settings),
        commit=options.commit,
    )


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="target.json")
    arguments.add_argument(
        "--selections",
        type=Path,
        nargs="+",
        required=True,
        help="selection.json of each dataset, with licence.json beside it",
    )
    arguments.add_argument(
        "--candidates",
        type=Path,
        nargs="*",
        default=[],
        help="candidates.json of each dataset: the digests of its source files",
    )
    arguments.add_argument(
        "--requirements", type=Path, nargs="+", required=True, help="pinned requirement files"
    )
    arguments.add_argument(
        "--settings", required=True, help="a digest of each section of the configuration, as JSON"
    )
    arguments.add_argument(
        "--images", type=Path, required=True, help="containers/images.lock.yaml of the checkout"
    )
    arguments.add_argument("--commit", default=UNKNOWN_COMMIT, help="commit of the checkout")
    arguments.add_argument("--out", type=Path, required=True, help="lock.json")
    run(main, arguments)
