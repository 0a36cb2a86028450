"""The answer in words, for the page and the terminal."""

from dataclasses import dataclass
from typing import Any

from aerie.report.text import (
    between,
    count,
    decimal,
    dig,
    integer,
    interval,
    number,
    percent,
    significant,
    table,
    times,
    with_interval,
)


@dataclass(frozen=True)
class Verdict:
    """`state` is pays, unclear, loses or unknown; `label` names it; the rest are sentences.

    `headline` is what stands before and after the name of the target, `words` are the bench's own.
    """

    state: str
    label: str
    headline: tuple[str, str]
    sentence: str
    meaning: list[str]
    words: str


@dataclass(frozen=True)
class KeyNumber:
    """A number of the verdict: its name, the value and what stands beside it."""

    name: str
    value: str
    note: str


def verdict(bench: Any) -> Verdict:
    """The verdict of one bench JSON."""
    state, label = _state(bench)
    speedup = number(bench, "speedup")
    headline = {
        "pays": ("The draft pays: ", f" decodes {times(speedup)} as fast with it."),
        "loses": ("The draft does not pay: ", f" decodes at {times(speedup)} its plain speed."),
        "unclear": ("Undecided: ", f" decodes {times(speedup)} as fast with the draft."),
        "unknown": ("The speed of ", " with the draft was not measured."),
    }[state]
    words = dig(bench, "verdict", "words")
    return Verdict(
        state=state,
        label=label,
        headline=headline,
        sentence=_sentence(bench),
        meaning=_meaning(bench, state),
        words=words if isinstance(words, str) else "",
    )


def key_numbers(bench: Any) -> list[KeyNumber]:
    """The numbers that the verdict rests on."""
    k = count(bench, "k")
    return [
        KeyNumber(
            "Accept length",
            decimal(number(bench, "accept_length")),
            _note(bench, "accept_length_ci95", f"of at most {k + 1}" if k else ""),
        ),
        KeyNumber(
            "Break-even", decimal(number(bench, "break_even_accept_length")), "accept length needed"
        ),
        KeyNumber(
            "Round cost R",
            decimal(number(bench, "round_cost")),
            _note(bench, "round_cost_ci95", "plain steps"),
        ),
        KeyNumber(
            "Plain speed", significant(number(bench, "plain", "tokens_per_s")), "tokens per second"
        ),
        KeyNumber(
            "With the draft",
            significant(number(bench, "draft", "tokens_per_s")),
            "tokens per second",
        ),
        KeyNumber(
            "Speed-up",
            times(number(bench, "speedup")),
            _note(bench, "speedup_ci95", "times the plain speed"),
        ),
    ]


def _note(bench: Any, key: str, otherwise: str) -> str:
    """The interval, or what the number means where no interval is known."""
    pair = interval(bench, key)
    return f"{between(pair)} at 95 %" if pair else otherwise


def _state(bench: Any) -> tuple[str, str]:
    """Pays or loses only if the whole interval of the speed-up says so."""
    speedup, pair = number(bench, "speedup"), interval(bench, "speedup_ci95")
    pays = dig(bench, "verdict", "pays")
    if speedup is None:
        return "unknown", "Not measured"
    if pair:
        pays = True if pair[0] > 1 else False if pair[1] < 1 else None
    if not isinstance(pays, bool):
        return "unclear", "Undecided"
    return ("pays", "It pays") if pays else ("loses", "It does not pay")


def _sentence(bench: Any) -> str:
    length, even = number(bench, "accept_length"), number(bench, "break_even_accept_length")
    relation = "against a break-even of"
    if length is not None and even is not None:
        relation = f"is {'above' if length > even else 'not above'} the break-even of"
    plain, draft = number(bench, "plain", "tokens_per_s"), number(bench, "draft", "tokens_per_s")
    return (
        f"An accept length of {with_interval(length, interval(bench, 'accept_length_ci95'))} "
        f"{relation} {decimal(even)}: {significant(draft)} tokens per second with the draft and "
        f"{significant(plain)} without, a speed-up of "
        f"{_times_with_interval(bench)} at a round cost of {decimal(number(bench, 'round_cost'))} "
        f"plain steps{_of_timed(bench)}."
    )


def _of_timed(bench: Any) -> str:
    """What the prompts that were timed reached, where it is not what all of them did."""
    timed = number(bench, "timed_accept_length")
    if timed is None or decimal(timed) == decimal(number(bench, "accept_length")):
        return ""
    return f" (the prompts that were timed: accept length {decimal(timed)})"


def _times_with_interval(bench: Any) -> str:
    pair = interval(bench, "speedup_ci95")
    speedup = times(number(bench, "speedup"))
    return f"{speedup} {between(pair)}" if pair else speedup


def _meaning(bench: Any, state: str) -> list[str]:
    length, cost = number(bench, "accept_length"), number(bench, "round_cost")
    result = []
    if length is not None and cost is not None:
        result.append(
            "Each time the target checks what the draft guessed, "
            f"{decimal(length)} tokens come out where a plain step gives one, and that check "
            f"takes as long as {decimal(cost)} plain steps."
        )
    if state == "unclear":
        pair = interval(bench, "speedup_ci95")
        reason = (
            f"The interval of the speed-up contains {times(1)}" if pair else "No interval is known"
        )
        result.append(
            f"{reason}, so these prompts do not tell a gain from a loss: measure more of them "
            "before you decide."
        )
    if state == "loses" and cost is not None:
        result.append(
            f"It would pay from an accept length of {decimal(cost)} on, or with a cheaper round: "
            "fewer draft tokens, or a smaller draft."
        )
    if domains := _extremes(bench):
        result.append(domains)
    if agreement := _agreement(bench):
        result.append(agreement)
    return result[:3]


def _extremes(bench: Any) -> str:
    lengths = {
        name: length
        for name in table(bench, "domains")
        if (length := number(bench, "domains", name, "accept_length")) is not None
    }
    if len(lengths) < 2:
        return ""
    best, worst = max(lengths, key=lengths.__getitem__), min(lengths, key=lengths.__getitem__)
    even = number(bench, "break_even_accept_length")
    below = sum(length <= even for length in lengths.values()) if even is not None else 0
    tail = f"; {below} of {len(lengths)} domains lie at or below the break-even" if below else ""
    return (
        f"Accept length is highest on {best} ({decimal(lengths[best])}) and lowest on {worst} "
        f"({decimal(lengths[worst])}){tail}."
    )


def _agreement(bench: Any) -> str:
    rate, compared = (
        number(bench, "equal_outputs", "rate"),
        count(bench, "equal_outputs", "compared"),
    )
    if rate is None:
        return ""
    dtype = dig(bench, "equal_outputs", "dtype") or "this precision"
    if rate == 1:
        return f"All {integer(compared)} answers equal plain greedy decoding, token for token."
    return (
        f"{percent(rate)} of {integer(compared)} answers equal plain greedy decoding token for "
        f"token; in {dtype} a pass over several tokens rounds differently from one over one."
    )
