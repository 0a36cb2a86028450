"""Near duplicates: MinHash signatures of five-character shingles, compared in 32 bands of four.

Two prompts whose shingles have a Jaccard index of 0.7 share a band with a probability of 0.9998;
whether they are near is then decided by the whole signature. MinHash is rensa's (R-MinHash 2);
banding is numpy's, since the pairs that it has to find lie in other datasets' files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aerie.prompts.codepoints import Array, CodePoints, mix

SHINGLE = 5
PERMUTATIONS = 128
BANDS = 32
THRESHOLD = 0.7
_SEED = 1
_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
# Two values of eight bits are equal by chance once in 256 times.
_CHANCE = 1 / 256
_PAIRS = 1 << 18
_TABLE = (1 << 22) - 1


@dataclass(frozen=True)
class Signatures:
    """`bands` uint32 [n, 32]: equal where four values of two signatures are; `bits` uint8 [n, 128].

    `bits` are the low eight bits of each of the 128 values (b-bit MinHash, Li and Koenig 2010).
    """

    bands: Array
    bits: Array


def signatures(folded: Sequence[str], systems: Array) -> Signatures:
    """The signatures of prompts.

    `folded` are their user turns as `aerie.prompts.text.fold` leaves them, `systems` uint64 [n]
    hashes of their system texts. They salt the shingles: prompts with different system texts have
    nothing in common, for a system text is long, and a few words below it ask for something else.
    """
    from rensa import RMinHash

    hashes, offsets = CodePoints.of(folded, SHINGLE - 1).shingles(SHINGLE)
    counts = (offsets[1:] - offsets[:-1]).astype(np.int64)
    hashes ^= np.repeat(systems, counts)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, PERMUTATIONS, _SEED)
    values = np.array(matrix.to_rows(), np.uint32).reshape(len(folded), PERMUTATIONS)
    rows = values.astype(np.uint64).reshape(len(folded), BANDS, PERMUTATIONS // BANDS)
    bands = rows[:, :, 0].copy()
    for place in range(1, rows.shape[2]):
        bands *= _MULTIPLIER
        bands += rows[:, :, place]
    return Signatures(
        (mix(bands) >> np.uint64(32)).astype(np.uint32), (values & 0xFF).astype(np.uint8)
    )


def similarity(left: Array, right: Array) -> Array:
    """The Jaccard index that two rows of `bits` uint8 [p, 128] suggest, float64 [p]."""
    equal: Array = (left == right).mean(axis=1)
    return (equal - _CHANCE) / (1 - _CHANCE)


def linked(band: Array) -> Iterator[tuple[Array, Array]]:
    """Pairs of rows, as (later int64 [p], earlier int64 [p]), with the same value in `band` [n].

    Each row is paired with the first of its group and with the one before it: all pairs of a group
    would be quadratic in it, and what two bands miss another finds.
    """
    order = np.argsort(band, kind="stable")
    values = band[order]
    same = np.flatnonzero(values[1:] == values[:-1]) + 1
    if not len(same):
        return
    yield order[same], order[same - 1]
    firsts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    first = firsts[np.searchsorted(firsts, same, side="right") - 1]
    further = first < same - 1
    yield order[same[further]], order[first[further]]


def near_earlier(bands: Iterable[Array], bits: Array) -> tuple[Array, Array]:
    """Which rows are near one before them, and which one.

    `bands` gives uint32 [n] for each band, `bits` is uint8 [n, 128]; rows are in the order in
    which they would be taken. A row counts as near whether or not the earlier one is dropped
    itself, so that what happens to it depends on nothing that comes after.

    Returns rows int64 [r], sorted, and for each the earliest row found near it, int64 [r].
    """
    best = np.full(len(bits), len(bits), np.int64)
    for band in bands:
        for later, earlier in linked(band):
            _improve(best, later, earlier, bits, bits)
    rows = np.flatnonzero(best < len(bits))
    return rows, best[rows]


def near_other(bands: Array, bits: Array, others: Array, other_bits: Array) -> tuple[Array, Array]:
    """Which rows are near a row of another dataset, and which one.

    `bands` and `others` are uint32 [32, n] and [32, m], the bits uint8 [n, 128] and [m, 128].

    Returns rows int64 [r], sorted, and for each the first row of the other found near it.
    """
    best = np.full(len(bits), len(other_bits), np.int64)
    for band, other in zip(bands, others, strict=True):
        # Nearly all values of the other dataset are not in this one: a table of bits tells.
        table = np.zeros(_TABLE + 1, np.bool_)
        table[band & _TABLE] = True
        theirs = np.flatnonzero(table[other & _TABLE])
        values, first = np.unique(other[theirs], return_index=True)
        if len(values):
            at = np.minimum(np.searchsorted(values, band), len(values) - 1)
            mine = np.flatnonzero(values[at] == band)
            _improve(best, mine, theirs[first[at[mine]]], bits, other_bits)
    rows = np.flatnonzero(best < len(other_bits))
    return rows, best[rows]


def _improve(best: Array, rows: Array, found: Array, bits: Array, other_bits: Array) -> None:
    """Put into `best` what was `found` for `rows`, if it comes first and is near."""
    for start in range(0, len(rows), _PAIRS):
        row, other = rows[start : start + _PAIRS], found[start : start + _PAIRS]
        better = other < best[row]
        row, other = row[better], other[better]
        near = similarity(bits[row], other_bits[other]) >= THRESHOLD
        np.minimum.at(best, row[near], other[near])
