"""The section `plan` of the configuration: what `make plan` weighs."""

from typing import Literal

from aerie.section import Section, key


class Shape(Section):
    """Sizes of the target, for a plan that is made before the target is there."""

    layers: int = key(..., "decoder layers", ge=4)
    hidden_size: int = key(..., "width of a hidden state", ge=1)
    max_position: int = key(..., "longest context, in tokens", ge=1)


class HistoryPoint(Section):
    """What an earlier draft for this target reached; the speeds give the round cost."""

    samples: int = key(..., "samples that it was trained on", ge=1)
    accept_length: float = key(..., "its accept length", ge=1)
    plain_tokens_per_s: float | None = key(None, "speed without the draft", gt=0)
    draft_tokens_per_s: float | None = key(None, "speed with the draft", gt=0)
    note: str = key("", "who measured it, and how")


class KnownRate(Section):
    """A rate that was measured elsewhere, on a host like the ones that are planned for."""

    tokens_per_s: float = key(
        ..., "tokens of prompt and answer that a host gets done in a second", gt=0
    )
    source: str = key(..., "who measured it, and how", min_length=1)


class PlanSettings(Section):
    """What the plan weighs: hosts, limits, and what is known from elsewhere."""

    hosts: int = key(1, "hosts that work at the same time", ge=1)
    gpus_per_host: int = key(8, "GPUs of a host", ge=1)
    max_gpu_hours: float | None = key(
        None, "the plan is refused above this", "raise it, or leave the key out", gt=0
    )
    round_cost: float | None = key(
        None, "R: time of a speculative round in plain decode steps; default: measured", gt=0
    )
    history: tuple[HistoryPoint, ...] = key((), "earlier drafts for this target")
    rates: dict[Literal["responses", "states", "draft"], KnownRate] = key(
        {}, "rates for a work folder that has measured none of its own"
    )
    shape: Shape | None = key(None, "sizes of the target where it is not there yet")
