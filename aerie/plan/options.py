"""What makes a plan impossible, and what would make it fit.

An option is weighed by estimating again with one setting changed, so that its saving is the plan's
own arithmetic.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from aerie.config import Config
from aerie.contracts.codecs import Codec
from aerie.plan.estimate import Plan, estimate
from aerie.plan.facts import Facts
from aerie.rolling.settings import RollingSettings

_SHORTEST_ANSWER = 256
# What is lost by each codec.
_CODECS: dict[Codec, str] = {
    "bf16": "nothing",
    "fp8": "rounds states",
    "teacher": "keeps the likeliest tokens in the place of the final state: no export",
}
# Parts differ from their mean, and so does what is held out of each.
_ROLLING_MARGIN = 0.9


@dataclass(frozen=True)
class Option:
    """One way out. `fits` says whether it is enough alone."""

    what: str
    cost: str
    bytes_saved: int
    gpu_hours_saved: float
    fits: bool


@dataclass(frozen=True)
class Problem:
    """Why the plan cannot work, in the words of a gate, with the options."""

    kind: str
    what: str
    saw: str
    expected: str
    options: tuple[Option, ...]


def find_problems(config: Config, facts: Facts, plan: Plan) -> tuple[Problem, ...]:
    """Every reason why `plan`, the estimate of `config`, cannot work. Empty if it can."""
    finders = (_disk, _takes, _context, _hours)
    return tuple(problem for find in finders for problem in find(config, facts, plan))


def _disk(config: Config, facts: Facts, plan: Plan) -> Iterator[Problem]:
    storage = plan.storage
    needed = storage.needed(storage.codec).expected
    if storage.fits(storage.codec):
        return

    def fits(other: Plan) -> bool:
        return other.storage.fits(other.storage.codec)

    options = [
        *_codecs(config, facts, plan),
        *_shorter(config, facts, plan, fits),
        *_fewer(config, facts, plan, fits),
        *_rolling(config, facts, plan),
        Option(
            f"a larger disk: {tb(needed - storage.free)} more, or another `work` folder",
            "",
            0,
            0.0,
            True,
        ),
    ]
    yield Problem(
        "disk",
        "what the build writes does not fit on the disk",
        saw=f"{tb(storage.free)} free under {config.work}",
        expected=f"{tb(needed)}: {plan.tokens.expected:,.0f} tokens of "
        f"{storage.bytes_per_token[storage.codec]:,} bytes in {storage.codec}, "
        "answers and checkpoints",
        options=tuple(options),
    )


def _takes(config: Config, facts: Facts, plan: Plan) -> Iterator[Problem]:
    for entry in plan.entries:
        if entry.available is None or entry.take <= entry.available:
            continue
        option = Option(
            f"datasets.{entry.dataset}.take: {entry.available}",
            f"loses {entry.take - entry.available:,} prompts; another dataset may give them",
            0,
            0.0,
            True,
        )
        yield Problem(
            "take",
            f"datasets.{entry.dataset}.take is more than there is",
            saw=f"take {entry.take:,}",
            expected=f"at most {entry.available:,} distinct prompts ({entry.available_source})",
            options=(option,),
        )


def _context(config: Config, facts: Facts, plan: Plan) -> Iterator[Problem]:
    context = plan.shape.max_position
    if plan.longest <= context:
        return
    answer = plan.longest - config.prompts.max_tokens
    options = []
    for section, field, other in (
        ("responses", "max_new_tokens", config.prompts.max_tokens),
        ("prompts", "max_tokens", answer),
    ):
        if context - other > 0:
            left = context - other
            changed = _changed(config, section, {field: left})
            cost = f"loses longer {'answers' if section == 'responses' else 'prompts'}"
            options.append(_weighed(f"{section}.{field}: {left}", cost, changed, facts, plan))
    yield Problem(
        "context",
        "the longest prompt and its answer are longer than the context of the target",
        saw=f"prompts.max_tokens {config.prompts.max_tokens:,} + the largest max_new_tokens "
        f"{answer:,} = {plan.longest:,} tokens",
        expected=f"at most {context:,}, the target's context ({plan.shape_source})",
        options=tuple(options),
    )


def _hours(config: Config, facts: Facts, plan: Plan) -> Iterator[Problem]:
    limit, hours = config.plan.max_gpu_hours, plan.gpu_hours.expected
    if limit is None or hours <= limit:
        return
    allowed: float = limit

    def fits(other: Plan) -> bool:
        return other.gpu_hours.expected <= allowed

    options = [
        *_shorter(config, facts, plan, fits),
        *_fewer(config, facts, plan, fits),
        *_epochs(config, facts, plan, fits),
        Option(f"plan.max_gpu_hours: {math.ceil(hours)}", "", 0, 0.0, True),
    ]
    yield Problem(
        "gpu_hours",
        "the build takes more GPU-hours than it may",
        saw=f"{hours:,.0f} GPU-hours",
        expected=f"at most {limit:,g} (plan.max_gpu_hours)",
        options=tuple(options),
    )


def _codecs(config: Config, facts: Facts, plan: Plan) -> Iterator[Option]:
    storage = plan.storage
    for codec in storage.states:
        saved = storage.needed(storage.codec).expected - storage.needed(codec).expected
        if saved > 0:
            yield Option(
                f"states.codec: {codec}",
                _CODECS[codec],
                round(saved),
                0.0,
                storage.fits(codec),
            )


def _shorter(
    config: Config, facts: Facts, plan: Plan, fits: Callable[[Plan], bool]
) -> Iterator[Option]:
    """The largest power of two below the present limit that fits; if none does, the largest."""
    largest = (config.responses.max_new_tokens - 1).bit_length() - 1
    others = [
        (1 << bits, estimate(_changed(config, "responses", {"max_new_tokens": 1 << bits}), facts))
        for bits in range(largest, _SHORTEST_ANSWER.bit_length() - 2, -1)
    ]
    if not others:
        return
    limit, other = next((each for each in others if fits(each[1])), others[0])
    lost = 1 - other.samples / max(plan.samples, 1)
    cost = (
        "cuts longer answers"
        if config.responses.keep_truncated
        else f"loses {lost:.0%} of the samples, the longest"
    )
    yield _option(f"responses.max_new_tokens: {limit}", cost, plan, other, fits(other))


def _fewer(
    config: Config, facts: Facts, plan: Plan, fits: Callable[[Plan], bool]
) -> Iterator[Option]:
    """All takes smaller by the same share: the least that is enough, in whole per cents."""
    low, high = 0, 99
    while low < high:
        percent = (low + high + 1) // 2
        if fits(estimate(_scaled(config, percent), facts)):
            low = percent
        else:
            high = percent - 1
    percent = low or 1
    other = estimate(_scaled(config, percent), facts)
    if other.prompts < plan.prompts:
        cost = f"loses {plan.prompts - other.prompts:,} of {plan.prompts:,} prompts"
        yield _option(f"takes of {percent} % of what they are", cost, plan, other, fits(other))


def _epochs(
    config: Config, facts: Facts, plan: Plan, fits: Callable[[Plan], bool]
) -> Iterator[Option]:
    if all(draft.epochs == 1 for draft in config.drafts.values()):
        return
    drafts = {name: draft.model_copy(update={"epochs": 1}) for name, draft in config.drafts.items()}
    other = estimate(config.model_copy(update={"drafts": drafts}), facts)
    yield _option("drafts.*.epochs: 1", "lowers the accept length", plan, other, fits(other))


def _rolling(config: Config, facts: Facts, plan: Plan) -> Iterator[Option]:
    """All that is free for states, and what may be shuffled together then; the least, a part and
    all samples held out, where that is more.
    """
    storage, codec = plan.storage, plan.storage.codec
    states, each = storage.states[codec].expected, storage.bytes_per_token[codec]
    share = max(draft.eval_share for draft in config.drafts.values())
    part = each * max(entry.tokens.expected / max(entry.parts, 1) for entry in plan.entries)
    free = storage.free + storage.present - storage.responses.expected - storage.drafts
    least = share * states + part / _ROLLING_MARGIN
    budget = max(_round_down(free), math.ceil(least))
    window = _ROLLING_MARGIN * (budget - share * states)
    shuffle = _round_down(window / each * (1 - share))
    if budget >= states or shuffle < 1:
        return
    rolling = RollingSettings(budget_bytes=budget)
    other = estimate(config.model_copy(update={"rolling": rolling}), facts)
    more = other.gpu_hours.expected - plan.gpu_hours.expected
    hours = f", up to {more:,.0f} GPU-hours more" if more > 0 else ""
    what = f"rolling.budget_bytes: {budget} with drafts.*.shuffle_tokens: {shuffle}"
    option = _option(what, f"captures states anew in each epoch{hours}", plan, other, free >= least)
    yield replace(option, gpu_hours_saved=0.0)


def _round_down(value: float) -> int:
    """To two digits, as people write a limit."""
    digits = max(len(str(int(value))) - 2, 0) if value > 0 else 0
    unit: int = 10**digits
    return int(value) // unit * unit


def _scaled(config: Config, percent: int) -> Config:
    datasets = {
        name: dataset.model_copy(update={"take": max(dataset.take * percent // 100, 1)})
        for name, dataset in config.datasets.items()
    }
    return config.model_copy(update={"datasets": datasets})


def _changed(config: Config, section: str, update: dict[str, int]) -> Config:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=update)})


def _weighed(what: str, cost: str, changed: Config, facts: Facts, plan: Plan) -> Option:
    other = estimate(changed, facts)
    return _option(what, cost, plan, other, other.longest <= other.shape.max_position)


def _option(what: str, cost: str, plan: Plan, other: Plan, fits: bool) -> Option:
    codec = plan.storage.codec
    saved = plan.storage.needed(codec).expected - other.storage.needed(codec).expected
    hours = plan.gpu_hours.expected - other.gpu_hours.expected
    return Option(what, cost, round(saved), round(hours, 1), fits)


def tb(count: float) -> str:
    """Bytes as people read them: `9.2 TB`, `31.4 MB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} B"
