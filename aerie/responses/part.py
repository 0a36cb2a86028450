"""One part of prompts on its way to responses: what is asked next, and what became of it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.config import ResponsesSettings
from aerie.contracts.prompts import read_prompts
from aerie.contracts.responses import AnswerSource, Response, ResponseReason
from aerie.engines.base import Answer
from aerie.progress import Progress
from aerie.prompts.adapters import adapter
from aerie.responses.checks import AnswerChecks
from aerie.responses.message import UnfitMessage
from aerie.responses.native import NativeAnswer, NativeTest
from aerie.responses.requests import Ask, Conversation, make_ask, native_digest, render_next
from aerie.target import Target


@dataclass
class Results:
    """Answers in the order they were judged, each with its place: (order of the prompt, turn).

    `claim` is the model that the dataset names for its own answers, `native` counts the
    conversations that were used, `not_native` the others by reason.
    """

    accepted: list[tuple[tuple[int, int], Response]] = field(default_factory=list)
    rejected: list[tuple[tuple[int, int], Response, ResponseReason]] = field(default_factory=list)
    claim: str | None = None
    native: int = 0
    not_native: Counter[str] = field(default_factory=Counter)

    def responses(self) -> list[Response]:
        """Accepted answers in the order of the prompts and their turns."""
        return [row for _, row in sorted(self.accepted, key=lambda entry: entry[0])]

    def rejects(self) -> list[tuple[Response, ResponseReason]]:
        """The others, in the same order."""
        ordered = sorted(self.rejected, key=lambda entry: entry[0])
        return [(row, reason) for _, row, reason in ordered]


class Part:
    """The conversations of a part. What they become depends on their answers, not on the order."""

    def __init__(
        self, prompts: Path, target: Target, settings: ResponsesSettings, seed: int
    ) -> None:
        self._target, self._settings, self._seed = target, settings, seed
        self._tokenizer = target.tokenizer()
        self._checks = AnswerChecks(self._tokenizer, target, settings)
        self.conversations = [Conversation(prompt) for prompt in read_prompts(prompts)]
        self.results = Results()

    @property
    def turns_left(self) -> int:
        """Answers still to be had, if none is rejected."""
        return sum(conversation.turns_left for conversation in self.conversations)

    def next_ask(self, order: int) -> Ask:
        """The request for the next turn of a conversation that has one."""
        conversation = self.conversations[order]
        ids = render_next(conversation, self._tokenizer, self._target)
        return make_ask(conversation, ids, self._target, self._settings, self._seed)

    def fits(self, ask: Ask) -> bool:
        """Whether prompt and answer are within the target's context."""
        tokens = len(ask.request.prompt_ids) + self._settings.max_new_tokens
        return tokens <= self._target.max_position

    def judge(self, order: int, ask: Ask, found: Answer | ResponseReason) -> int:
        """Accept an answer into its conversation, or end that.

        `found` is a reason where there is no answer. Gives the later turns that are not asked for
        that reason.
        """
        conversation = self.conversations[order]
        prompt, place = conversation.prompt, (order, len(conversation.answers))
        answer = found if isinstance(found, Answer) else Answer([], "length")
        response = Response(
            id=ask.id,
            dataset=prompt.dataset,
            part=prompt.part,
            mode=prompt.mode,
            prompt_ids=ask.request.prompt_ids,
            output_ids=answer.output_ids,
            finish_reason=answer.finish_reason,
            request_digest=ask.digest,
            text=self._checks.text(answer.output_ids),
        )
        reason = self._checks.reason(found, prompt.mode) if isinstance(found, Answer) else found
        if reason is None:
            said = self._checks.said(response.output_ids)
            conversation.answers.append({"role": "assistant", "content": said})
            self.results.accepted.append((place, response))
            return 0
        conversation.rejected = True
        self.results.rejected.append((place, response, reason))
        return len(prompt.turns) - len(conversation.answers) - 1

    def take_native(self, origin: Mapping[str, Any], progress: Progress) -> None:
        """Take the answers that the dataset has and that pass the test; count those that fail.

        `origin` is the provenance of the prompts.
        """
        claimed = [entry for entry in enumerate(self.conversations) if entry[1].prompt.native]
        if not claimed:
            return
        claim = self.results.claim = adapter(origin["adapter"]).native
        test = NativeTest(self._tokenizer, self._target, self._settings, claim)
        for order, conversation in claimed:
            try:
                answers = test.answers(conversation.prompt)
            except UnfitMessage as no:
                self.results.not_native[no.reason] += 1
                continue
            for found in answers:
                response = self._native_response(conversation, found)
                self.results.accepted.append(((order, len(conversation.answers)), response))
                conversation.answers.append(found.message.as_chat())
            self.results.native += 1
            progress.skip(len(answers))

    def _native_response(self, conversation: Conversation, found: NativeAnswer) -> Response:
        prompt = conversation.prompt
        return Response(
            id=conversation.id,
            dataset=prompt.dataset,
            part=prompt.part,
            mode=prompt.mode,
            prompt_ids=found.prompt_ids,
            output_ids=found.output_ids,
            finish_reason="stop",
            request_digest=native_digest(
                self._target, prompt.mode, found.prompt_ids, found.output_ids
            ),
            text=self._checks.text(found.output_ids),
            source=AnswerSource.DATASET,
        )
