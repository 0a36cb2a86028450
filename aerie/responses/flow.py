"""Answers one by one: each conversation goes on as soon as its last answer is there."""

from collections import deque
from collections.abc import Sequence

from aerie.contracts.responses import ResponseReason
from aerie.engines.base import Answer, Refused, Request
from aerie.progress import Progress
from aerie.responses.journal import Journal
from aerie.responses.part import Part
from aerie.responses.requests import Ask


class Flow:
    """A part as work for an engine that streams. Answers of the journal are not asked for.

    Later turns go before new conversations: their history is still in the server's cache.
    """

    def __init__(self, part: Part, journal: Journal, progress: Progress) -> None:
        self._part, self._journal, self._progress = part, journal, progress
        self._fresh = iter(range(len(part.conversations)))
        self._ready: deque[tuple[int, Ask]] = deque()
        self._taken: dict[str, tuple[int, Ask]] = {}

    def is_over(self) -> bool:
        """Whether nothing is left to be asked, unless it follows from what is asked now."""
        while not self._ready:
            order = next(self._fresh, None)
            if order is None:
                return True
            self._advance(order)
        return False

    def take(self, count: int) -> list[tuple[str, Request]]:
        """The next requests, `count` at most, by the ids of their responses."""
        taken: list[tuple[str, Request]] = []
        while len(taken) < count and not self.is_over():
            order, ask = self._ready.popleft()
            self._taken[ask.id] = (order, ask)
            taken.append((ask.id, ask.request))
        return taken

    def settle(self, outcomes: Sequence[tuple[str, Answer | Refused]], in_flight: int) -> None:
        """Journal the answers with one write, judge them, and see how their conversations go on."""
        answers = {name: found for name, found in outcomes if isinstance(found, Answer)}
        if answers:
            self._journal.add((self._taken[name][1].digest, a) for name, a in answers.items())
        for name, _ in outcomes:
            order, ask = self._taken.pop(name)
            # Two conversations may ask the same: the journal has one answer for both.
            self._judge(
                order,
                ask,
                self._journal.answers.get(ask.digest, ResponseReason.REQUEST_FAILED),
            )
            self._advance(order)
        tokens = sum(len(answer.output_ids) for answer in answers.values())
        note = f"{in_flight} in flight  {len(self._part.results.rejected)} rejected"
        self._progress.advance(len(outcomes), tokens, note)

    def _advance(self, order: int) -> None:
        """Go through the turns that need no asking, up to one that does or to the end."""
        while self._part.conversations[order].turns_left:
            ask = self._part.next_ask(order)
            found: Answer | ResponseReason | None = self._journal.answers.get(ask.digest)
            if not self._part.fits(ask):
                found = ResponseReason.PROMPT_TOO_LONG
            if found is None:
                self._ready.append((order, ask))
                return
            self._progress.skip(1)
            self._judge(order, ask, found)

    def _judge(self, order: int, ask: Ask, found: Answer | ResponseReason) -> None:
        self._progress.skip(self._part.judge(order, ask, found))
