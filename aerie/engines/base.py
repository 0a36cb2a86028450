"""What every engine can do. Phases know this interface and no engine."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from aerie.contracts.layers import Layers


@dataclass(frozen=True)
class Request:
    """A prompt to be answered. `seed` makes a sampled answer the row's own."""

    prompt_ids: list[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True)
class Answer:
    """What the target sampled, end token included; `finish_reason` is `stop` or `length`."""

    output_ids: list[int]
    finish_reason: str


@dataclass(frozen=True)
class Refused:
    """No answer: the engine does not take the request, or fails whenever it is tried; `why`."""

    why: str


@dataclass(frozen=True)
class Captured:
    """States of one sequence of t tokens: `aux` bf16 [t, A*H] and `last` bf16 [t, H]."""

    aux: "torch.Tensor"
    last: "torch.Tensor"


class Engine(Protocol):
    """Runs the target."""

    def generate(self, batch: Sequence[Request]) -> list[Answer]:
        """Answer the requests of one batch together. The same batch gives the same numbers."""
        ...

    def capture(self, batch: Sequence[Sequence[int]], layers: "Layers") -> list[Captured]:
        """States of each sequence of token ids by one forward pass over the batch."""
        ...


class Work(Protocol):
    """Requests that come up while others are answered. One thread at a time calls it."""

    def take(self, count: int) -> list[tuple[str, Request]]:
        """The next requests, each with its own name, `count` at most.

        Fewer where no more are known before some that were taken are settled.
        """
        ...

    def settle(self, outcomes: Sequence[tuple[str, Answer | Refused]], in_flight: int) -> None:
        """Keep what became of requests, by name; `in_flight` others are at the engine now.

        Called every few seconds, if need be without an outcome.
        """
        ...


class StreamEngine(Protocol):
    """An engine that is at its best when it always has many requests."""

    def stream(self, work: Work) -> None:
        """Ask all of `work`, as many at a time as the engine takes, and settle each."""
        ...


class CaptureStream(Protocol):
    """An engine that captures at its own pace, ahead of whoever takes the states."""

    def states(self, sequences: Iterable[Sequence[int]]) -> Iterator[Captured]:
        """States of each sequence of token ids, in order, while the next ones are computed."""
        ...
