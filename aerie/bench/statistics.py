"""Intervals by bootstrap, clustered by prompt: the rounds of one answer are not independent."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]

_RESAMPLES = 2000
_CONFIDENCE = 0.95


class Bootstrap:
    """Resamples of n clusters, the same ones for every statistic, so that ratios stay paired."""

    def __init__(self, clusters: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self._weights = generator.multinomial(
            clusters, np.full(clusters, 1 / clusters), size=_RESAMPLES
        ).astype(np.float64)

    def interval(
        self, statistic: Callable[..., Floats], *columns: Sequence[float]
    ) -> Interval | None:
        """95 % percentile interval of `statistic(*sums)`, where each sum is of one column.

        A column has one value for each cluster. None if there is a single cluster, which says
        nothing about the spread.
        """
        if self._weights.shape[1] < 2:
            return None
        sums = [self._weights @ np.asarray(column, dtype=np.float64) for column in columns]
        values = statistic(*sums)
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        tail = 50 * (1 - _CONFIDENCE)
        low, high = np.percentile(values, [tail, 100 - tail])
        return float(low), float(high)
