"""Search one category of datasets on the Hub, look into the best ones and rank them."""

import argparse
import json
from pathlib import Path

from aerie.command import log, parser, run
from aerie.config import ScoutSettings
from aerie.scout.categories import CATEGORIES
from aerie.scout.client import Client, check_online
from aerie.scout.search import Scouting, scout


def main(options: argparse.Namespace) -> None:
    """Scout one category."""
    check_online()
    category = CATEGORIES[options.category]
    settings = ScoutSettings.model_validate_json(options.settings)
    mix = json.loads(options.mix)
    content = scout(Scouting(category, settings, mix, options.cache, Client()), options.out)
    if failure := content["failure"]:
        log.warning("%s: %s: %s", category.name, failure["what"], failure["saw"])
    else:
        count = len(content["candidates"])
        log.info("%s: %d candidates of %d listed", category.name, count, content["listed"])


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--category", choices=CATEGORIES, required=True, help="its key")
    arguments.add_argument("--settings", default="{}", help="`scout` of the configuration, as JSON")
    arguments.add_argument("--mix", default="{}", help="dataset ids of the mix to entries, as JSON")
    arguments.add_argument(
        "--cache", type=Path, required=True, help="folder of what is known of a dataset's commit"
    )
    arguments.add_argument("--out", type=Path, required=True, help="what was found, JSON")
    run(main, arguments)
