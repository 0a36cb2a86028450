"""Two curves of AL over the number of samples, which of them holds, and how far it reaches.

Log-linear, AL = a + b ln n, as "Scaling Laws for Speculative Decoding" (arXiv 2505.07858) finds
for pre-training tokens; saturating, AL = A - B n^-c, as drafts do on text like their training data.
Each is linear once c is given, so c is searched on a grid and every resample is fitted exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from aerie.bench.statistics import Bootstrap, Floats, Interval

_EXPONENTS = np.geomspace(0.05, 2.0, 40)
LEAST_SIZES = 4


class Form(StrEnum):
    """The shape of a curve."""

    LOG_LINEAR = "log_linear"
    SATURATING = "saturating"


@dataclass(frozen=True)
class Points:
    """AL of drafts on `sizes` samples, float64 [m], and in each resample, `resampled` [R, m]."""

    sizes: Floats
    lengths: Floats
    resampled: Floats
    seed_deviation: float


@dataclass(frozen=True)
class Curve:
    """The form that was chosen, its AL at `at`, float64 [q], and in each resample [R, q]."""

    form: Form
    errors: dict[Form, float]
    lengths: Floats
    resampled: Floats


def points(sizes: Sequence[int], accepted: Floats, rounds: Floats, bootstrap: Bootstrap) -> Points:
    """Points from drafts of `sizes` samples, one entry a draft; several seeds may share a size.

    `accepted` and `rounds` are float64 [drafts, clusters]: the same held-out prompts for each, so
    that a resample draws the same prompts for all of them. What seeds differ by where a size has
    several is added to every resample as normal noise: held-out prompts cannot show it.
    """
    every, owner = np.unique(np.asarray(sizes, dtype=np.float64), return_inverse=True)
    share = np.zeros((len(every), len(sizes)))
    share[owner, np.arange(len(sizes))] = 1
    seeds = share.sum(1)
    share /= seeds[:, None]
    alone = 1 + accepted.sum(1) / rounds.sum(1)
    lengths = share @ alone
    freedom = int((seeds - 1).sum())
    left = alone - lengths[owner]
    deviation = float(np.sqrt((left**2).sum() / freedom)) if freedom else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = 1 + (bootstrap.weights @ accepted.T) / (bootstrap.weights @ rounds.T)
    drawn = drawn @ share.T
    noise = np.random.default_rng(len(sizes)).normal(size=drawn.shape)
    return Points(every, lengths, drawn + noise * deviation / np.sqrt(seeds), deviation)


def fit(found: Points, at: Sequence[float]) -> Curve | None:
    """The curve that foresaw the largest size best from the others, at the sizes `at`.

    Each resample chooses its own form, so that the doubt about the form is in the spread. None
    below four sizes: three points fit the saturating curve whatever they are.
    """
    if len(found.sizes) < LEAST_SIZES:
        return None
    sizes, wanted = found.sizes, np.asarray(at, dtype=np.float64)
    everything = np.vstack([found.lengths, found.resampled])
    predicted = {form: _predict(form, sizes, everything, wanted) for form in Form}
    errors = {
        form: np.abs(
            _predict(form, sizes[:-1], everything[:, :-1], sizes[-1:])[:, 0] - everything[:, -1]
        )
        for form in Form
    }
    saturates = errors[Form.SATURATING] < errors[Form.LOG_LINEAR]
    chosen = np.where(saturates[:, None], predicted[Form.SATURATING], predicted[Form.LOG_LINEAR])
    return Curve(
        Form.SATURATING if saturates[0] else Form.LOG_LINEAR,
        {form: float(error[0]) for form, error in errors.items()},
        chosen[0],
        chosen[1:],
    )


def _predict(form: Form, sizes: Floats, lengths: Floats, at: Floats) -> Floats:
    """AL at `at` [q] of the curves through each row of `lengths` [R, m]: [R, q]."""
    # Sizes relative to the largest keep the powers near 1.
    x, wanted = sizes / sizes.max(), at / sizes.max()
    if form is Form.LOG_LINEAR:
        values, _ = _line(np.log(x), lengths, np.log(wanted))
        return values
    best, least = np.empty((len(lengths), len(at))), np.full(len(lengths), np.inf)
    for exponent in _EXPONENTS:
        # More data makes no draft worse: where the points fall, the curve is level.
        values, squares = _line(-(x**-exponent), lengths, -(wanted**-exponent), rising=True)
        better = squares < least
        best[better], least = values[better], np.minimum(least, squares)
    return best


def _line(x: Floats, y: Floats, at: Floats, rising: bool = False) -> tuple[Floats, Floats]:
    """Least squares y = a + b x of each row: values at `at` [R, q] and the sum of squares [R]."""
    centred = x - x.mean()
    slope = y @ centred / (centred @ centred)
    if rising:
        slope = np.maximum(slope, 0)
    middle = y.mean(1)
    squares = ((y - middle[:, None] - slope[:, None] * centred) ** 2).sum(1)
    return middle[:, None] + slope[:, None] * (at - x.mean()), squares


def interval_at(curve: Curve, place: int, found: Points, bootstrap: Bootstrap) -> Interval | None:
    """95 % prediction interval at one size: of the curve, and of a draft of one seed about it."""
    noise = np.random.default_rng(place).normal(0, found.seed_deviation, len(curve.resampled))
    return bootstrap.spread(curve.resampled[:, place] + noise)
