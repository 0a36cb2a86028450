"""Prompts of a suite as the target reads them, and its answers as people and later turns do."""

from collections.abc import Sequence

from aerie.bench.accept import Measured
from aerie.bench.degenerate import degenerate
from aerie.bench.suite import SuitePrompt
from aerie.config import BenchSettings, ResponsesSettings
from aerie.errors import ConfigError
from aerie.responses.checks import AnswerChecks
from aerie.target import Target, render


class Renderer:
    """Renders conversations of one target."""

    def __init__(self, target: Target, settings: BenchSettings) -> None:
        self._target, self._settings = target, settings
        self._tokenizer = target.tokenizer()
        self._checks = AnswerChecks(self._tokenizer, target, ResponsesSettings())

    def ids(self, prompt: SuitePrompt, answers: Sequence[list[int]] = ()) -> list[int]:
        """Token ids of the conversation up to the answer that follows `answers`.

        Raises:
            ConfigError: it does not fit into the target.
        """
        said = [self._checks.said(answer) for answer in answers]
        ids = render(
            self._tokenizer, self._target, prompt.messages(said), prompt.mode, prompt.tools
        )
        if len(ids) + self._settings.max_new_tokens > self._target.max_position:
            raise ConfigError(
                f"the suite's prompt {prompt.id} does not fit into the target",
                saw=f"{len(ids)} tokens and {self._settings.max_new_tokens} to answer",
                expected=f"at most {self._target.max_position}",
                remedy="lower `bench.max_new_tokens` or shorten the prompt",
            )
        return ids

    def judge(self, each: Measured) -> None:
        """Say of an answer whether it is degenerate."""
        text = self._checks.text(each.output_ids)
        each.degenerate = degenerate(each.output_ids, text, self._settings)
