"""Read one downloaded dataset and write all its distinct prompts in the order of selection."""

import argparse
from pathlib import Path

from aerie.command import log, parser, run
from aerie.config import DatasetSettings, PromptsSettings
from aerie.prompts.candidates import Settings, build
from aerie.target import read_target

# How many prompts are taken is no argument here: another take must not make these anew.


def main(options: argparse.Namespace) -> None:
    """Build the candidates of one dataset."""
    settings = Settings(
        name=options.name,
        adapter=options.adapter,
        path=options.path,
        origin=options.origin,
        files=tuple(options.files) if options.files else None,
        benchmarks=tuple(options.benchmarks),
        max_rejected_share=options.max_rejected_share,
        max_tokens=options.max_tokens,
        max_turns=options.max_turns,
        seed=options.seed,
    )
    target = read_target(options.target)
    counts = build(settings, target, options.out, options.threads)["counts"]
    log.info(
        "%s: %s rows, %s candidates, %s rejected",
        settings.name,
        f"{counts['rows']:,}",
        f"{counts['candidates']:,}",
        f"{sum(counts['rejects'].values()):,}",
    )
    for reason, count in sorted(counts["rejects"].items()):
        log.info("  %s: %s", reason, f"{count:,}")


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    dataset, prompts = DatasetSettings.model_fields, PromptsSettings.model_fields
    result = parser(__doc__)
    result.add_argument("--name", required=True, help="the dataset's name in the mix")
    result.add_argument("--adapter", required=True, help="Hugging Face id of the dataset")
    result.add_argument("--path", type=Path, required=True, help="file or folder of the dataset")
    result.add_argument("--origin", type=Path, help="source.json of a copy from the Hub")
    result.add_argument("--files", nargs="+", help="patterns of files; default: the adapter's")
    result.add_argument(
        "--benchmarks",
        type=Path,
        nargs="*",
        default=[],
        metavar="FILE",
        help="prompts that must not be trained on: suites of the bench and other JSONL files",
    )
    result.add_argument(
        "--max-rejected-share",
        type=float,
        default=dataset["max_rejected_share"].default,
        help="share of the rows that may be rejected before the build stops",
    )
    for name, help in (
        ("max_tokens", "longest prompt, in tokens of the target"),
        ("max_turns", "user turns kept of a conversation"),
    ):
        option = "--" + name.replace("_", "-")
        result.add_argument(option, type=int, default=prompts[name].default, help=help)
    result.add_argument("--seed", type=int, default=0, help="seed of the selection's order")
    result.add_argument("--target", type=Path, required=True, help="target.json of the target")
    result.add_argument("--out", type=Path, required=True, help="folder of the candidates")
    return result


if __name__ == "__main__":
    run(main, arguments())
