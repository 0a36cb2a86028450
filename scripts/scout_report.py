"""Join what was scouted in every category to one report."""

import argparse
from pathlib import Path

from aerie.command import log, parser, run
from aerie.progress import console
from aerie.scout.report import write_report


def main(options: argparse.Namespace) -> None:
    """Write the report and say where it is."""
    report = write_report(options.categories, options.json, options.markdown)
    if report["failed"]:
        log.warning("not searched: %s; run `make scout` again", ", ".join(report["failed"]))
    console.print(f"scout: {report['datasets']} datasets, see {options.markdown}", soft_wrap=True)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument(
        "--categories", type=Path, nargs="+", required=True, help="what was found, a file each"
    )
    arguments.add_argument("--json", type=Path, required=True, help="report.json")
    arguments.add_argument("--markdown", type=Path, required=True, help="report.md")
    run(main, arguments)
