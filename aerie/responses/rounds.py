"""Answers by batch: turn 1 of all conversations, then turn 2 of those that go on, and so forth."""

from collections.abc import Callable

from aerie.contracts.responses import ResponseReason
from aerie.engines.base import Engine
from aerie.progress import Progress
from aerie.responses.journal import Journal
from aerie.responses.part import Part
from aerie.responses.requests import Ask, batches


class Rounds:
    """Has an engine answer a part in batches, whose numbers depend on what is in them.

    So a batch with one answer missing is redone whole. `open_engine` is called once there is one.
    """

    def __init__(
        self,
        part: Part,
        journal: Journal,
        progress: Progress,
        open_engine: Callable[[], Engine],
        batch_size: int,
    ) -> None:
        self._part, self._journal, self._progress = part, journal, progress
        self._open_engine, self._batch_size = open_engine, batch_size
        self._engine: Engine | None = None

    def run(self) -> None:
        """Answer every conversation to its end."""
        while self._part.turns_left:
            self._round()

    def _round(self) -> None:
        asked: list[tuple[int, Ask]] = []
        for order, conversation in enumerate(self._part.conversations):
            if conversation.turns_left:
                ask = self._part.next_ask(order)
                if self._part.fits(ask):
                    asked.append((order, ask))
                else:
                    lost = self._part.judge(order, ask, ResponseReason.PROMPT_TOO_LONG)
                    self._progress.skip(1 + lost)
        for batch in batches([ask for _, ask in asked], self._batch_size):
            self._answer(batch)
        for order, ask in asked:
            lost = self._part.judge(order, ask, self._journal.answers[ask.digest])
            self._progress.skip(lost)

    def _answer(self, batch: list[Ask]) -> None:
        if all(ask.digest in self._journal.answers for ask in batch):
            self._progress.skip(len(batch))
            return
        if self._engine is None:
            self._engine = self._open_engine()
        answers = self._engine.generate([ask.request for ask in batch])
        self._journal.add(zip((ask.digest for ask in batch), answers, strict=True))
        self._progress.advance(len(batch), sum(len(answer.output_ids) for answer in answers))
