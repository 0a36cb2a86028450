"""What every engine can do. Phases know this interface and no engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from aerie.contracts.states import Layers


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
