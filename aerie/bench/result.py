"""From measured answers to the bench JSON: accept length, speed, round cost and the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from aerie.bench.statistics import Bootstrap, Interval
from aerie.train.tally import Tally

DEFINITIONS = {
    "accept_length": "1 + accepted draft tokens / rounds, summed over all prompts (token-weighted)",
    "accept_length_by_request": "mean over prompts of each prompt's own accept length",
    "simulated_accept_length": "the same walk over plain greedy answers, from captured states",
    "positions": "position i: rounds that proposed a draft token i before the answer's end; "
    "conditional = kept / reached, joint = kept / all rounds",
    "tokens_per_s": "decoded tokens / decoding time, prefill left out, batch 1; median of repeats",
    "speedup": "tokens per second with the draft / without",
    "round_cost": "R: seconds of a speculative round / seconds of a plain decode step",
    "break_even_accept_length": "the accept length at which the draft neither gains nor loses: R",
    "ci95": "95 % percentile bootstrap over prompts, 2,000 resamples",
    "equal_outputs": "share of timed prompts whose answer equals plain greedy decoding's",
}


@dataclass
class Measured:
    """What was measured on one prompt. Seconds: one entry a repeat, none if it was not timed."""

    id: str
    domain: str
    tally: Tally
    output_ids: list[int]
    plain_ids: list[int] = field(default_factory=list)
    plain_seconds: list[float] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)

    @property
    def timed(self) -> bool:
        """Whether the prompt was run with and without the draft, and decoded at all."""
        return bool(self.plain_seconds) and len(self.plain_ids) > 1 and self.tally.rounds > 0


def summarise(measured: Sequence[Measured], k: int) -> dict[str, Any]:
    """The measured part of the bench JSON."""
    overall = Tally(k)
    for each in measured:
        overall.add(each.tally)
    result = _accept_length(measured) | _speed([each for each in measured if each.timed])
    result |= {
        "rounds": overall.rounds,
        "accepted": sum(overall.accepted),
        "output_tokens": sum(len(each.output_ids) for each in measured),
        "prompts": len(measured),
        "positions": _positions(overall),
        "equal_outputs": _equal([each for each in measured if each.timed]),
        "domains": _domains(measured),
        "definitions": DEFINITIONS,
        "requests": [
            {
                "id": each.id,
                "domain": each.domain,
                "output_tokens": len(each.output_ids),
                "rounds": each.tally.rounds,
                "accepted": sum(each.tally.accepted),
                "equal": each.output_ids == each.plain_ids if each.timed else None,
            }
            for each in measured
        ],
    }
    result["verdict"] = verdict(result, k)
    return result


def _accept_length(measured: Sequence[Measured]) -> dict[str, Any]:
    answered = [each for each in measured if each.tally.rounds]
    accepted = [sum(each.tally.accepted) for each in answered]
    rounds = [each.tally.rounds for each in answered]
    own = [each.tally.accept_length for each in answered]
    bootstrap = Bootstrap(len(answered))
    return {
        "accept_length": _round(1 + sum(accepted) / sum(rounds)),
        "accept_length_ci95": _pair(bootstrap.interval(lambda a, r: 1 + a / r, accepted, rounds)),
        "accept_length_by_request": _round(float(np.mean(own))),
        "accept_length_by_request_ci95": _pair(
            bootstrap.interval(lambda total: total / len(own), own)
        ),
    }


def _speed(timed: Sequence[Measured]) -> dict[str, Any]:
    # The first token comes from the prefill, which is left out of the time.
    plain_tokens = [len(each.plain_ids) - 1 for each in timed]
    draft_tokens = [len(each.output_ids) - 1 for each in timed]
    plain_s = [median(each.plain_seconds) for each in timed]
    draft_s = [median(each.draft_seconds) for each in timed]
    rounds = [each.tally.rounds for each in timed]
    ratios = Bootstrap(len(timed))
    plain, draft = sum(plain_tokens) / sum(plain_s), sum(draft_tokens) / sum(draft_s)
    cost = sum(draft_s) / sum(rounds) * plain
    return {
        "plain": {
            "tokens_per_s": _round(plain),
            "tokens_per_s_ci95": _pair(ratios.interval(lambda n, s: n / s, plain_tokens, plain_s)),
            "seconds_per_token": 1 / plain,
        },
        "draft": {
            "tokens_per_s": _round(draft),
            "tokens_per_s_ci95": _pair(ratios.interval(lambda n, s: n / s, draft_tokens, draft_s)),
            "seconds_per_round": sum(draft_s) / sum(rounds),
        },
        "speedup": _round(draft / plain),
        "speedup_ci95": _pair(
            ratios.interval(
                lambda dn, ds, pn, ps: dn / ds / (pn / ps),
                draft_tokens,
                draft_s,
                plain_tokens,
                plain_s,
            )
        ),
        "round_cost": _round(cost),
        "round_cost_ci95": _pair(
            ratios.interval(
                lambda ds, r, pn, ps: ds / r * pn / ps, draft_s, rounds, plain_tokens, plain_s
            )
        ),
        "break_even_accept_length": _round(cost),
    }


def _positions(overall: Tally) -> list[dict[str, Any]]:
    return [
        {
            "position": number + 1,
            "reached": reached,
            "accepted": accepted,
            "conditional": _round(accepted / reached) if reached else None,
            "joint": _round(accepted / overall.rounds) if overall.rounds else None,
        }
        for number, (reached, accepted) in enumerate(
            zip(overall.reached, overall.accepted, strict=True)
        )
    ]


def _equal(timed: Sequence[Measured]) -> dict[str, Any]:
    equal = sum(each.output_ids == each.plain_ids for each in timed)
    return {"compared": len(timed), "equal": equal, "rate": _round(equal / len(timed))}


def _domains(measured: Sequence[Measured]) -> dict[str, Any]:
    groups: dict[str, list[Measured]] = {}
    for each in measured:
        groups.setdefault(each.domain, []).append(each)
    domains = {}
    for name, group in sorted(groups.items()):
        if not any(each.tally.rounds for each in group):
            continue
        timed = [each for each in group if each.timed]
        speed = _speed(timed) if timed else None
        domains[name] = {
            **{k: v for k, v in _accept_length(group).items() if "request" not in k},
            "rounds": sum(each.tally.rounds for each in group),
            "prompts": len(group),
            "plain_tokens_per_s": speed["plain"]["tokens_per_s"] if speed else None,
            "draft_tokens_per_s": speed["draft"]["tokens_per_s"] if speed else None,
            "speedup": speed["speedup"] if speed else None,
        }
    return domains


def verdict(result: dict[str, Any], k: int) -> dict[str, Any]:
    """Whether the draft pays, in words. `pays` is None where the interval holds both answers."""
    interval = result["speedup_ci95"]
    pays = True if interval and interval[0] > 1 else False if interval and interval[1] < 1 else None
    head = {True: "The draft pays", False: "The draft does not pay", None: "Undecided"}[pays]
    gained, cost, speedup = result["accept_length"], result["round_cost"], result["speedup"]
    spread = f"95 % interval {interval[0]:.2f} to {interval[1]:.2f}, " if interval else ""
    words = (
        f"{head}: with k = {k} a round gains {gained:.2f} tokens and costs {cost:.2f} plain decode "
        f"steps, so decoding runs at {speedup:.2f} times its plain speed ({spread}batch 1)."
    )
    if pays is False:
        words += f" It would pay from an accept length of {cost:.2f} on."
    if pays is None:
        words += " More prompts or repeats would narrow the interval."
    return {"pays": pays, "words": words}


def _pair(interval: Interval | None) -> list[float] | None:
    return [_round(value) for value in interval] if interval else None


def _round(value: float) -> float:
    return round(value, 4)
