"""Suites: prompts that are measured on and never trained on, in the shapes of their own files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from aerie.errors import DataError
from aerie.prompts.benchmarks import Message, asked, read_rows

Mode = Literal["thinking", "instant"]
_ID_KEYS = ("id", "question_id", "task_id", "unique_id", "instance_id")
_DOMAIN_KEYS = ("domain", "category", "subject")


@dataclass(frozen=True)
class SuitePrompt:
    """One prompt of a suite. `domain` is what results are grouped by.

    `context` is the conversation before the first of `turns`. Without turns it ends with a tool's
    result, and the answer to that is measured.
    """

    id: str
    domain: str
    turns: list[str]
    context: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    mode: Mode = "instant"

    @property
    def answers(self) -> int:
        """How many answers the target gives."""
        return max(1, len(self.turns))

    def messages(self, answers: Sequence[str] = ()) -> list[Message]:
        """The conversation up to the answer that follows `answers`, the target's so far."""
        messages = list(self.context)
        for number, turn in enumerate(self.turns[: len(answers) + 1]):
            if number:
                messages.append({"role": "assistant", "content": answers[number - 1]})
            messages.append({"role": "user", "content": turn})
        return messages


def read_suite(path: Path, per_domain: int | None = None) -> list[SuitePrompt]:
    """Read a suite, or the first `per_domain` prompts of each of its domains.

    Raises:
        DataError: the file is missing or empty, a row is not a prompt, or an id comes twice.
    """
    if not path.is_file():
        raise DataError(
            f"the suite {path} is missing", remedy="correct `bench.suites` in the configuration"
        )
    prompts: list[SuitePrompt] = []
    taken: dict[str, int] = {}
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(read_rows(path)):
        prompt = _prompt(row, where, path.name.partition(".")[0], number)
        if prompt.id in seen:
            raise DataError(
                f"{where}: the id is taken",
                saw=f"{prompt.id}, as in {seen[prompt.id]}",
                remedy="give every prompt an id of its own: comparisons go by it",
            )
        seen[prompt.id] = where
        taken[prompt.domain] = taken.get(prompt.domain, 0) + 1
        if per_domain is None or taken[prompt.domain] <= per_domain:
            prompts.append(prompt)
    if not prompts:
        raise DataError(f"the suite {path} is empty", remedy="give it at least two prompts")
    return prompts


def _prompt(row: dict[str, Any], where: str, suite: str, number: int) -> SuitePrompt:
    question = asked(row, where)
    if row.get("involved_classes"):
        raise DataError(
            f"{where} needs the simulated environment of BFCL",
            saw=f"involved_classes {row['involved_classes']}",
            expected="a prompt that the target can answer alone",
            remedy="use the single-turn files of bfcl-eval",
        )
    mode = row.get("mode", "instant")
    if mode not in get_args(Mode):
        raise DataError(
            f"{where}: `mode` is unknown", saw=mode, expected=" or ".join(get_args(Mode))
        )
    named = next((row[key] for key in _ID_KEYS if row.get(key) not in (None, "")), None)
    domain = next((str(row[key]) for key in _DOMAIN_KEYS if row.get(key)), suite)
    return SuitePrompt(
        f"{suite}-{number}" if named is None else str(named),
        domain,
        question.turns,
        question.context,
        question.tools,
        mode,
    )
