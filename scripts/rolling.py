"""Train a draft while its states are captured and removed in turn. Resumes from its checkpoint."""

import argparse
from pathlib import Path

from aerie.command import add_answers, parser, run
from aerie.states.settings import StatesSettings
from aerie.train.settings import DraftSettings


def main(options: argparse.Namespace) -> None:
    from aerie.rolling.run import Rolling
    from aerie.rolling.settings import RollingSettings

    rolling = Rolling(
        responses=options.responses,
        target=options.target,
        map=options.map,
        draft=options.settings,
        settings=options.states_settings,
        engine=options.engine,
        greedy=options.greedy,
        threads=options.threads,
        states=options.states,
        journal=options.journal,
        checkpoints=options.checkpoints,
        tracking=options.tracking,
        logs=options.logs,
        trainer=options.trainer,
        scripts=Path(__file__).parent,
        out=options.out,
    )
    rolling.run(options.budget_bytes or RollingSettings.from_environment().budget_bytes)


if __name__ == "__main__":
    arguments = parser(__doc__)
    for name, help_text in {
        "target": "target.json",
        "map": "map.json",
        "states": "folder that states come and go in",
        "journal": "folder of what a second run continues from",
        "checkpoints": "folder of the training's resume",
        "tracking": "folder where the run can be watched",
        "logs": "folder of the logs of captures and trainings",
        "out": "draft.json, written last but rolling.json",
    }.items():
        arguments.add_argument(f"--{name}", type=Path, required=True, help=help_text)
    arguments.add_argument(
        "--responses", type=Path, nargs="+", required=True, help="sidecars of all parts"
    )
    arguments.add_argument(
        "--settings",
        type=DraftSettings.model_validate_json,
        required=True,
        help="one of `drafts`, as JSON",
    )
    arguments.add_argument(
        "--states-settings",
        type=StatesSettings.model_validate_json,
        required=True,
        help="the section `states` as JSON",
    )
    arguments.add_argument("--engine", required=True, help="what runs the target")
    add_answers(arguments)
    arguments.add_argument(
        "--budget-bytes", type=int, help="states on the disk at a time; default: AERIE_ROLLING"
    )
    arguments.add_argument("--trainer", default="python", help="what starts a script that trains")
    run(main, arguments)
