"""Select the prompts of one dataset from its candidates and write them as a folder of parts."""

import argparse
from pathlib import Path

from aerie.command import log, parser, run
from aerie.config import BenchSettings, PromptsSettings
from aerie.files import read_json
from aerie.prompts.select import Settings, select


def main(options: argparse.Namespace) -> None:
    """Select the prompts of one dataset."""
    settings = Settings(
        options.take,
        options.part_size,
        options.thinking_share,
        options.seed,
        options.held_out,
    )
    select(settings, options.candidates, options.earlier, options.out)
    selection = read_json(options.out / "selection.json")
    log.info(
        "%s: %s prompts in %s parts, %s candidates left, %s repeat earlier datasets, %s nearly",
        selection["dataset"],
        f"{selection['selected']:,}",
        f"{len(selection['parts']):,}",
        f"{selection['surplus']:,}",
        f"{sum(selection['duplicates'].values()):,}",
        f"{sum(selection['near_duplicates'].values()):,}",
    )


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    result = parser(__doc__)
    result.add_argument("--take", type=int, required=True, help="prompts wanted")
    result.add_argument(
        "--part-size",
        type=int,
        default=PromptsSettings.model_fields["part_size"].default,
        help="candidates in a part",
    )
    result.add_argument(
        "--thinking-share",
        type=float,
        default=PromptsSettings.model_fields["thinking_share"].default,
        help="share of the prompts that the target thinks about",
    )
    result.add_argument(
        "--held-out",
        type=int,
        default=BenchSettings.model_fields["held_out"].default,
        help="prompts that are measured on and never selected",
    )
    result.add_argument("--seed", type=int, default=0, help="seed of the choice of modes")
    result.add_argument(
        "--candidates", type=Path, required=True, help="candidates.json of the dataset"
    )
    result.add_argument(
        "--earlier",
        type=Path,
        nargs="*",
        default=[],
        metavar="CANDIDATES",
        help="candidates.json of the datasets before it, in priority order",
    )
    result.add_argument("--out", type=Path, required=True, help="folder of the selection")
    return result


if __name__ == "__main__":
    run(main, arguments())
