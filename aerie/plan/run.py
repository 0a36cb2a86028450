"""Makes the plan: reads the facts, writes the page, and refuses what cannot work."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from aerie.config import Config
from aerie.errors import GateError
from aerie.files import replacing, write_sealed
from aerie.plan.document import document
from aerie.plan.estimate import estimate
from aerie.plan.facts import read_facts
from aerie.plan.options import Option, Problem, find_problems, tb
from aerie.plan.render import markdown, print_summary


def make_plan(config: Config, out: Path, console: Console | None = None) -> None:
    """Write the plan of `config` to `out`, `plan.json`, and beside it as `plan.md`; print it.

    Raises:
        ConfigError: the sizes of the target are not known.
        ContractError: an artifact of an earlier run is damaged.
        GateError: the plan cannot work. Both files are written before.
    """
    console = console or Console(highlight=False)
    facts = read_facts(config)
    plan = estimate(config, facts)
    problems = find_problems(config, facts, plan)
    page = out.with_suffix(".md")
    write_sealed(out, document(plan, problems))
    with replacing(page) as scratch:
        scratch.write_text(markdown(plan, problems), encoding="utf-8")
    print_summary(plan, problems, console)
    # A path is copied from here, so it must not be wrapped, styled or read as markup.
    console.print(Text(f"Plan: {page}"), soft_wrap=True)
    if problems:
        raise refusal(problems)


def refusal(problems: Sequence[Problem]) -> GateError:
    """All problems as one error of a gate, with the options of each."""
    first = problems[0]
    if len(problems) == 1:
        return GateError(
            "plan",
            first.what,
            saw=first.saw,
            expected=first.expected,
            remedy="one of\n" + "\n".join(_lines(first)),
        )
    lines = []
    for problem in problems:
        lines.append(f"  - {problem.what}: {problem.saw}, expected {problem.expected}")
        lines += [f"  {line}" for line in _lines(problem)]
    return GateError("plan", f"{len(problems)} reasons why it cannot work\n" + "\n".join(lines))


def _lines(problem: Problem) -> list[str]:
    return [f"    - {_words(option)}" for option in problem.options]


def _words(option: Option) -> str:
    saves = [tb(option.bytes_saved)] if option.bytes_saved else []
    saves += [f"{option.gpu_hours_saved:,.1f} GPU-hours"] if option.gpu_hours_saved else []
    words = option.what
    words += f": saves {' and '.join(saves)}" if saves else ""
    words += f"; {option.cost}" if option.cost else ""
    return words + ("" if option.fits else "; not enough alone")
