"""How many tokens a sample has: measured where answers exist, else estimated by category.

Without answers, lengths are taken to be log-normal. That gives what a limit of the answer's length
costs: the share of the answers that reach it, and the tokens of those that stay below.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from aerie.prompts.adapters.base import Category

_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.975)

# A balanced corpus of Kimi-K3 answers: mean 2,643 and median 1,342 tokens. For a log-normal
# mean / median = exp(sigma^2 / 2). It then puts 16.9 % of the answers above 4,096 tokens and 6.0 %
# above 8,192; 16.2 % and 7.1 % were counted.
SIGMA = math.sqrt(2 * math.log(2643 / 1342))

# Mean tokens of a sample, prompt included, when the target thinks. An issue comes with its first
# answer alone, and a question with tools with one step.
CATEGORIES: dict[Category, tuple[int, int]] = {
    Category.CODING: (2500, 5000),
    Category.AGENTIC: (1000, 4000),
    Category.REASONING: (3000, 8000),
    Category.CHAT: (1000, 2000),
    Category.REVIEW: (2500, 5000),
    Category.LONG_FORM: (3000, 6000),
    Category.MULTI_LANGUAGE: (2500, 5000),
}
# Of all others: the team's own mean, and that of a mix of Kimi-K2.5 answers (122.97M tokens in
# 49,302 rows).
_ANY_CATEGORY = (1604, 2494)


@dataclass(frozen=True)
class Range:
    """A figure with what it may be at least and at most."""

    low: float
    expected: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> "Range":
        return cls(value, value, value)

    @classmethod
    def sorted(cls, values: Iterable[float]) -> "Range":
        """Of three values in any order; the middle one is expected."""
        return cls(*sorted(values))

    @classmethod
    def total(cls, ranges: Iterable["Range"]) -> "Range":
        """The sum, where all may be low together and high together."""
        rows = list(ranges)
        return cls(
            sum(row.low for row in rows),
            sum(row.expected for row in rows),
            sum(row.high for row in rows),
        )

    def times(self, factor: float) -> "Range":
        return Range(self.low * factor, self.expected * factor, self.high * factor)

    def less(self, amount: float) -> "Range":
        """What is left of it; never below nothing."""
        return Range(*(max(value - amount, 0) for value in (self.low, self.expected, self.high)))

    def at_most(self, limit: float) -> "Range":
        return Range(*(min(value, limit) for value in (self.low, self.expected, self.high)))

    def over(self, rate: "Range") -> "Range":
        """This amount of work at `rate`: the least work is done soonest at the highest rate."""
        return Range(self.low / rate.high, self.expected / rate.expected, self.high / rate.low)


@dataclass(frozen=True)
class Answers:
    """Tokens of each accepted answer and of the prompt before it, int64 [n] each."""

    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]


@dataclass(frozen=True)
class Lengths:
    """What the answers to one dataset come to, for each answer that is asked for.

    `generated` counts all tokens of prompt and answer that the target works through, `kept` those
    that states are captured of. `lost` is the share of the answers that the limit drops.
    """

    kept: Range
    generated: Range
    lost: float


def estimated(
    category: Category, prompt_tokens: float, limit: int, keep_truncated: bool
) -> Lengths:
    """Lengths of a dataset that has no answers yet.

    `prompt_tokens` is the mean length of its prompts, 0 where it is unknown: the figures of the
    categories include a prompt of usual length. `limit` bounds an answer.
    """
    low, high = CATEGORIES.get(category, _ANY_CATEGORY)
    means = [max(level - prompt_tokens, low) for level in (low, (low + high) / 2, high)]
    shares = [share_above(mean, limit) for mean in means]
    below = [tokens_below(mean, limit) for mean in means]
    cut = [inside + share * limit for inside, share in zip(below, shares, strict=True)]
    generated = Range.sorted(prompt_tokens + tokens for tokens in cut)
    if keep_truncated:
        return Lengths(generated, generated, 0.0)
    kept = [
        prompt_tokens * (1 - share) + inside for inside, share in zip(below, shares, strict=True)
    ]
    return Lengths(Range.sorted(kept), generated, shares[1])


def measured(answers: Answers, limit: int, keep_truncated: bool) -> Lengths:
    """Lengths of a dataset by the answers that it has; the range is a 95 % interval of the mean."""
    over = answers.outputs > limit
    generated = _mean(answers.prompts + np.minimum(answers.outputs, limit))
    if keep_truncated:
        return Lengths(generated, generated, 0.0)
    kept = _mean(np.where(over, 0, answers.prompts + answers.outputs))
    return Lengths(kept, generated, float(over.mean()))


def share_above(mean: float, limit: float) -> float:
    """The share of log-normal lengths of that mean that are above `limit`."""
    return 1 - _NORMAL.cdf((math.log(limit) - _location(mean)) / SIGMA)


def tokens_below(mean: float, limit: float) -> float:
    """Tokens for each answer in those that are below `limit`: E[X; X <= limit]."""
    return mean * _NORMAL.cdf((math.log(limit) - _location(mean)) / SIGMA - SIGMA)


def _location(mean: float) -> float:
    return math.log(mean) - SIGMA**2 / 2


def _mean(values: NDArray[np.int64]) -> Range:
    mean = float(values.mean())
    spread = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Range(max(mean - _Z95 * spread, 0.0), mean, mean + _Z95 * spread)
