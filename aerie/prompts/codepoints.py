"""Many texts as one array of code points, so that every character is looked at by numpy alone."""

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Odd multipliers of 64 bits: of a polynomial in the characters, and of a finisher.
_P = np.uint64(0x9E3779B97F4A7C15)
_Q = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)


def mix(values: Array) -> Array:
    """`values` uint64 with every bit spread over all others, in place."""
    values ^= values >> _SHIFT
    values *= _Q
    values ^= values >> _SHIFT
    return values


@dataclass(frozen=True)
class CodePoints:
    """Texts one after another, each followed by `gap` zeros.

    `values` uint64 [N], `starts` int64 [n] and `sizes` int64 [n] in characters.
    """

    values: Array
    starts: Array
    sizes: Array
    gap: int

    @classmethod
    def of(cls, texts: Sequence[str], gap: int) -> "CodePoints":
        """The code points of `texts`, which hold no lone surrogates."""
        joined = ("\0" * gap).join([*texts, ""])
        values = np.frombuffer(joined.encode("utf-32-le"), np.uint32).astype(np.uint64)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        starts = np.concatenate([[0], np.cumsum(sizes + gap)[:-1]]).astype(np.int64)
        return cls(values, starts, sizes, gap)

    def shingles(self, width: int) -> tuple[Array, Array]:
        """Hashes of all runs of `width` characters, text by text.

        A shorter text has one, of itself. Returns hashes uint64 [M] and offsets uint64 [n + 1].
        Needs a gap of `width` - 1 at least.
        """
        windows = len(self.values) - width + 1
        hashes = self.values[:windows].copy()
        for place in range(1, width):
            hashes *= _P
            hashes += self.values[place : place + windows]
        counts = np.where(self.sizes > 0, np.maximum(self.sizes - width + 1, 1), 0)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        kept = np.arange(offsets[-1]) + np.repeat(self.starts - offsets[:-1], counts)
        return mix(hashes[kept]), offsets.astype(np.uint64)

    def words(self) -> tuple[Array, Array]:
        """Hashes of all words (runs of letters, digits and underscores) in their order.

        Returns hashes uint64 [W] and the index of each word's text, int64 [W].
        """
        inside = _word_characters()[self.values]
        edges = np.diff(inside.astype(np.int8), prepend=0, append=0)
        firsts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        hashes = np.zeros(len(firsts), np.uint64)
        lengths = ends - firsts
        # Place after place of all words that are so long: as many rounds as the longest has.
        order = np.argsort(-lengths, kind="stable")
        longest = -lengths[order]
        at = firsts[order]
        for place in range(int(lengths.max(initial=0))):
            count = int(np.searchsorted(longest, -place, side="left"))
            hashes[:count] *= _P
            hashes[:count] += self.values[at[:count] + place]
        result = np.empty_like(hashes)
        result[order] = mix(hashes)
        return result, np.searchsorted(self.starts, firsts, side="right") - 1


@functools.cache
def _word_characters() -> Array:
    every = map(chr, range(sys.maxunicode + 1))
    return np.fromiter((c == "_" or c.isalnum() for c in every), np.bool_, sys.maxunicode + 1)
