"""From measured answers to the bench JSON: accept length, speed, round cost and the verdict."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from aerie.bench.accept import (
    Clusters,
    Measured,
    accept_length,
    by_domain,
    group,
    groups,
    pair,
    positions,
    rounded,
    rounds,
    total,
)

DEFINITIONS = {
    "accept_length": "1 + accepted draft tokens / rounds, summed over all prompts (token-weighted)",
    "accept_length_by_request": "mean over prompts of each prompt's own accept length",
    "simulated_accept_length": "the same walk over plain greedy answers, from captured states",
    "positions": "position i: rounds that proposed a draft token i before the answer's end; "
    "conditional = kept / reached, joint = kept / all rounds",
    "contexts": "accept length by the tokens of the prompt; modes: thinking and instant",
    "degenerate": "answers that loop, repeat or compress: in no figure but this one",
    "tokens_per_s": "decoded tokens / decoding time, prefill left out, batch 1; median of repeats",
    "speedup": "tokens per second with the draft / without",
    "timed_accept_length": "accept length of the answers that speed and round cost are of",
    "round_cost": "R: seconds of a speculative round / seconds of a plain decode step",
    "break_even_accept_length": "the accept length at which the draft neither gains nor loses: R",
    "ci95": "95 % bootstrap over prompts, 2,000 resamples, widened for few prompts",
    "equal_outputs": "share of timed prompts whose answer equals plain greedy decoding's",
}


def summarise(measured: Sequence[Measured], k: int) -> dict[str, Any]:
    """The measured part of the bench JSON. Degenerate answers count in no figure but their own."""
    counted = [each for each in measured if not each.degenerate]
    timed = [each for each in counted if each.timed]
    overall = total(counted)
    result = accept_length(counted) | _speed(timed) | groups(counted)
    result |= {
        "rounds": overall.rounds,
        "accepted": sum(overall.accepted),
        "output_tokens": sum(len(each.output_ids) for each in counted),
        "prompts": Clusters(counted).count,
        "answers": len(counted),
        "positions": positions(counted),
        "equal_outputs": _equal(timed),
        "domains": _domains(counted),
        "degenerate": _degenerate(measured),
        "definitions": DEFINITIONS,
        "requests": [_request(each) for each in measured],
    }
    result["verdict"] = verdict(result, k)
    return result


def _request(each: Measured) -> dict[str, Any]:
    return {
        "id": each.id,
        "prompt": each.prompt,
        "domain": each.domain,
        "mode": each.mode,
        "context_tokens": len(each.prompt_ids),
        "output_tokens": len(each.output_ids),
        "rounds": each.tally.rounds,
        "accepted": sum(each.tally.accepted),
        "degenerate": each.degenerate,
        "equal": each.output_ids == each.plain_ids if each.timed else None,
    }


def _degenerate(measured: Sequence[Measured]) -> dict[str, Any]:
    return {
        "answers": sum(each.degenerate is not None for each in measured),
        "reasons": dict(Counter(each.degenerate for each in measured if each.degenerate)),
        "accept_length_with_them": accept_length(measured)["accept_length"],
    }


def _speed(timed: Sequence[Measured]) -> dict[str, Any]:
    """Speeds and round cost; null where nothing was timed."""
    clusters = Clusters(timed)
    # The first token comes from the prefill, which is left out of the time.
    plain_tokens = clusters.sums(len(each.plain_ids) - 1 for each in timed)
    draft_tokens = clusters.sums(len(each.output_ids) - 1 for each in timed)
    plain_s = clusters.sums(median(each.plain_seconds) for each in timed)
    draft_s = clusters.sums(median(each.draft_seconds) for each in timed)
    of = clusters.sums(rounds(each) for each in timed)
    if not timed:
        nothing = {"tokens_per_s": None, "tokens_per_s_ci95": None}
        names = ("speedup", "speedup_ci95", "round_cost", "round_cost_ci95", "timed_accept_length")
        return {
            "plain": nothing,
            "draft": nothing,
            "break_even_accept_length": None,
        } | dict.fromkeys(names)
    interval = clusters.bootstrap.interval
    plain, draft = sum(plain_tokens) / sum(plain_s), sum(draft_tokens) / sum(draft_s)
    cost = sum(draft_s) / sum(of) * plain
    return {
        "plain": {
            "tokens_per_s": rounded(plain),
            "tokens_per_s_ci95": pair(interval(lambda n, s: n / s, plain_tokens, plain_s)),
            "seconds_per_token": 1 / plain,
        },
        "draft": {
            "tokens_per_s": rounded(draft),
            "tokens_per_s_ci95": pair(interval(lambda n, s: n / s, draft_tokens, draft_s)),
            "seconds_per_round": sum(draft_s) / sum(of),
        },
        "speedup": rounded(draft / plain),
        "speedup_ci95": pair(
            interval(
                lambda dn, ds, pn, ps: dn / ds / (pn / ps),
                draft_tokens,
                draft_s,
                plain_tokens,
                plain_s,
            )
        ),
        "round_cost": rounded(cost),
        "round_cost_ci95": pair(
            interval(lambda ds, r, pn, ps: ds / r * pn / ps, draft_s, of, plain_tokens, plain_s)
        ),
        "break_even_accept_length": rounded(cost),
        "timed_accept_length": rounded(total(timed).accept_length),
    }


def _equal(timed: Sequence[Measured]) -> dict[str, Any]:
    equal = sum(each.output_ids == each.plain_ids for each in timed)
    rate = rounded(equal / len(timed)) if timed else None
    return {"compared": len(timed), "equal": equal, "rate": rate}


def _domains(measured: Sequence[Measured]) -> dict[str, Any]:
    domains = {}
    for name, some in by_domain(measured).items():
        speed = _speed([each for each in some if each.timed])
        domains[name] = group(some) | {
            "plain_tokens_per_s": speed["plain"]["tokens_per_s"],
            "draft_tokens_per_s": speed["draft"]["tokens_per_s"],
            "speedup": speed["speedup"],
        }
    return domains


def verdict(result: dict[str, Any], k: int) -> dict[str, Any]:
    """Whether the draft pays, in words. `pays` is None where the interval holds both answers."""
    interval = result["speedup_ci95"]
    pays = True if interval and interval[0] > 1 else False if interval and interval[1] < 1 else None
    head = {True: "The draft pays", False: "The draft does not pay", None: "Undecided"}[pays]
    length, cost, speedup = result["accept_length"], result["round_cost"], result["speedup"]
    if length is None or speedup is None:
        return {"pays": None, "words": "Undecided: no answer was timed that counts."}
    timed = result["timed_accept_length"]
    # Speed-up x R is the accept length of the timed answers, not of all.
    apart = f" ({timed:.2f} on the timed prompts)" if f"{timed:.2f}" != f"{length:.2f}" else ""
    spread = f"95 % interval {interval[0]:.2f} to {interval[1]:.2f}, " if interval else ""
    words = (
        f"{head}: with k = {k} a round gains {length:.2f} tokens{apart} and costs {cost:.2f} "
        f"plain decode steps, so decoding runs at {speedup:.2f} times its plain speed "
        f"({spread}batch 1)."
    )
    if pays is False:
        words += f" It would pay from an accept length of {cost:.2f} on."
    if pays is None:
        words += " More prompts or repeats would narrow the interval."
    return {"pays": pays, "words": words}
