"""Intervals by bootstrap, clustered by prompt: the rounds of one answer are not independent."""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]

_RESAMPLES = 2000
_CONFIDENCE = 0.95
_POWER = 0.8
_LEAST_CLUSTERS = 3
_FEW_CLUSTERS = 8


class Bootstrap:
    """Resamples of n clusters, the same ones for every statistic, so that ratios stay paired."""

    def __init__(self, clusters: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        shares = np.full(clusters, 1 / max(clusters, 1))
        self.weights: Floats = (
            generator.multinomial(clusters, shares, size=_RESAMPLES).astype(np.float64)
            if clusters
            else np.zeros((_RESAMPLES, 0))
        )

    def interval(
        self, statistic: Callable[..., Floats], *columns: Sequence[float]
    ) -> Interval | None:
        """95 % interval of `statistic(*sums)`, where each sum is of one column.

        A column has one value for each cluster. None if there are fewer than three clusters, which
        say next to nothing about the spread.
        """
        sums = [self.weights @ np.asarray(column, dtype=np.float64) for column in columns]
        # A resample may hold nothing to divide by; it says nothing and is left out.
        with np.errstate(divide="ignore", invalid="ignore"):
            values = statistic(*sums)
        return self.spread(values)

    def spread(self, values: Floats) -> Interval | None:
        """The 95 % interval of a statistic, from its value in each resample [2000].

        The percentiles are those that make the interval of a mean as wide as Student's: plain ones
        are too narrow where there are few clusters (Hesterberg, "What teachers should know about
        the bootstrap", 2015, section 3.3: the expanded percentile interval). Under eight clusters
        such percentiles lie beyond the resamples, so the resamples' deviation is used itself.
        """
        clusters = self.weights.shape[1]
        values = values[np.isfinite(values)]
        if clusters < _LEAST_CLUSTERS or not len(values):
            return None
        wide = _student(clusters - 1) * math.sqrt(clusters / (clusters - 1))
        if clusters < _FEW_CLUSTERS:
            middle, half = float(values.mean()), wide * float(values.std())
            return middle - half, middle + half
        tail = 100 * NormalDist().cdf(-wide)
        low, high = np.percentile(values, [tail, 100 - tail])
        return float(low), float(high)


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution.

    By the expansion of Abramowitz and Stegun, 26.7.5: within 1 % from 2 degrees of freedom on.
    """
    z: float = _normal(_CONFIDENCE)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def deviation(accepted: Sequence[float], rounds: Sequence[float]) -> float:
    """What one prompt adds to the error of AL: the interval of n prompts is ± 1.96 of it / √n.

    The standard deviation of the ratio's linearised contributions (Cochran, "Sampling Techniques",
    section 6.3).

    Raises:
        ValueError: there are fewer than two prompts.
    """
    gained, of = np.asarray(accepted, dtype=np.float64), np.asarray(rounds, dtype=np.float64)
    if len(of) < 2:
        raise ValueError("the spread of one prompt is not known")
    left = (gained - of * gained.sum() / of.sum()) / of.mean()
    return float(left.std(ddof=1))


def prompts_for_half_width(spread: float, half_width: float) -> int:
    """Prompts until the 95 % interval of AL is ± `half_width`; `spread` as of `deviation`."""
    return max(2, math.ceil((_normal(_CONFIDENCE) * spread / half_width) ** 2))


def prompts_for_difference(spread: float, difference: float) -> int:
    """Prompts until a true `difference` is told from none in four of five tries, at 95 %.

    `spread` is that of what is compared with zero: of a paired difference, or √2 that of one draft
    where the two are measured on different prompts.
    """
    needed = _normal(_CONFIDENCE) + NormalDist().inv_cdf(_POWER)
    return max(2, math.ceil((needed * spread / difference) ** 2))


def _normal(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)
