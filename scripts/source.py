"""Fetch one dataset from the Hub: pinned to a commit, and only what is read of it."""

import argparse
from pathlib import Path

from aerie.command import log, parser, run
from aerie.hub.fetch import Wanted, fetch


def main(options: argparse.Namespace) -> None:
    """Bring the files of one dataset beside its sidecar."""
    wanted = Wanted(
        repo=options.repo,
        revision=options.revision,
        patterns=tuple(options.files),
        columns=tuple(options.columns),
        optional=tuple(options.optional),
    )
    sidecar = fetch(wanted, options.out.parent)
    log.info(
        "%s at %s: %d files, %s bytes",
        wanted.repo,
        sidecar["provenance"]["commit"],
        sidecar["counts"]["files"],
        f"{sidecar['counts']['bytes']:,}",
    )


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    result = parser(__doc__)
    result.add_argument("--repo", required=True, help="dataset on the Hub, OWNER/NAME")
    result.add_argument("--revision", default="main", help="branch, tag or commit")
    result.add_argument("--files", nargs="+", required=True, help="patterns of files")
    result.add_argument("--columns", nargs="+", required=True, help="columns that must be there")
    result.add_argument("--optional", nargs="*", default=[], help="columns that may be there")
    result.add_argument("--out", type=Path, required=True, help="source.json; files lie beside it")
    return result


if __name__ == "__main__":
    run(main, arguments())
