"""Suites: prompts that are measured on and never trained on, as JSONL."""

import json
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import DataError


@dataclass(frozen=True)
class SuitePrompt:
    """One prompt of a suite. `domain` is what results are grouped by."""

    id: str
    domain: str
    system: str | None
    turns: list[str]

    def messages(self) -> list[dict[str, str]]:
        """The conversation up to the first answer."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.turns[0]}]


def read_suite(path: Path, per_domain: int | None = None) -> list[SuitePrompt]:
    """Read a suite, or the first `per_domain` prompts of each of its domains.

    Raises:
        DataError: the file is missing or empty, or a line is not a prompt.
    """
    if not path.is_file():
        raise DataError(
            f"the suite {path} is missing", remedy="correct `bench.suites` in the configuration"
        )
    prompts: list[SuitePrompt] = []
    taken: dict[str, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        prompt = _parse(line, f"{path}, line {number}")
        taken[prompt.domain] = taken.get(prompt.domain, 0) + 1
        if per_domain is None or taken[prompt.domain] <= per_domain:
            prompts.append(prompt)
    if not prompts:
        raise DataError(f"the suite {path} is empty", remedy="give it at least two prompts")
    return prompts


def _parse(line: str, where: str) -> SuitePrompt:
    try:
        prompt = SuitePrompt(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{where} is not a prompt",
            saw=error,
            expected='{"id": …, "domain": …, "system": … or null, "turns": ["…"]}',
        ) from error
    turns = prompt.turns
    if not (isinstance(turns, list) and turns and all(isinstance(t, str) and t for t in turns)):
        raise DataError(
            f"{where}: `turns` is not a list of texts", saw=turns, expected='["the user\'s text"]'
        )
    return prompt
