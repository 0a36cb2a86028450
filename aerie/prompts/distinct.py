"""Which of a dataset's accepted rows are distinct prompts, and in what order they are taken.

Rows are numbered through all slices of the dataset, in the order of file names and of rows.
"""

from dataclasses import dataclass

import numpy as np
import xxhash

from aerie.contracts.candidates import Index
from aerie.prompts.codepoints import Array
from aerie.prompts.near import near_earlier
from aerie.prompts.rows import Piece


@dataclass(frozen=True)
class Verdict:
    """What became of the accepted rows of a dataset.

    `kept` int64 [n] are the candidates in the order in which they are taken, `ranks` int64 [n]
    their ranks and `index` their index. `same` and `near` are int64 [d, 2]: a row that is dropped
    and the one that it repeats, of the same key or identity in `same`.
    """

    kept: Array
    ranks: Array
    index: Index
    same: Array
    near: Array
    same_identity: Array

    def duplicates(self) -> tuple[int, int]:
        """How many rows are duplicates, and how many near duplicates."""
        return len(self.same), len(self.near)


def decide(pieces: list[Piece], dataset: str, seed: int) -> Verdict:
    """Drop duplicates, order what is left, and drop what is near something before it.

    Of duplicates the shortest is kept, free of invisible characters and white space; of equally
    long ones the one with the smaller digest.
    """
    facts = np.concatenate([piece.facts for piece in pieces])
    bands = np.concatenate([piece.bands for piece in pieces]).astype(np.uint32, copy=False)
    bits = np.concatenate([piece.bits for piece in pieces]).astype(np.uint8, copy=False)
    kept, same, same_identity = _distinct(facts)
    ranks = np.fromiter(
        (rank(seed, dataset, key) for key in _hex(facts["key"][kept])), np.int64, len(kept)
    )
    order = take_order(ranks, facts["key"][kept], facts["stratum"][kept])
    kept, ranks = kept[order], ranks[order]
    columns = (np.ascontiguousarray(bands[kept, number]) for number in range(bands.shape[1]))
    later, earlier = near_earlier(columns, bits[kept])
    far = np.ones(len(kept), np.bool_)
    far[later] = False
    near = np.stack([kept[later], kept[earlier]], axis=1)
    kept, ranks = kept[far], ranks[far]
    index = Index(_bytes(facts["key"][kept]), bands[kept].T, bits[kept])
    return Verdict(kept, ranks, index, same, near, same_identity)


def rank(seed: int, dataset: str, key: str) -> int:
    """The rank of a key in its dataset: xxh3-64 of all three, as a signed integer."""
    digest = xxhash.xxh3_64_digest(f"{seed}\0{dataset}\0{key}".encode())
    return int.from_bytes(digest, "big", signed=True)


def take_order(ranks: Array, keys: Array, strata: Array) -> Array:
    """The order, int64 [n], in which prompts are taken.

    `ranks` int64 [n], `keys` uint64 [n, 2], `strata` uint64 [n]. Strata take turns, each giving
    its prompts by rank, until they have none left; without strata it is the order of ranks.
    """
    by_rank = np.lexsort((keys[:, 1], keys[:, 0], ranks))
    grouped = np.argsort(strata[by_rank], kind="stable")
    sizes = np.unique(strata, return_counts=True)[1]
    turn = np.empty(len(ranks), np.int64)
    turn[grouped] = np.arange(len(ranks)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order: Array = by_rank[np.argsort(turn, kind="stable")]
    return order


def _distinct(facts: Array) -> tuple[Array, Array, Array]:
    """Rows to keep, in their order; pairs of dropped rows and those they repeat; which by identity.

    A row goes if a row that is preferred to it and kept has its key or its identity.
    """
    preferred = np.lexsort((facts["digest"][:, 1], facts["digest"][:, 0], facts["size"]))
    keys = _bytes(facts["key"]).view("V16").reshape(-1)
    _, numbers, counts = np.unique(keys, return_inverse=True, return_counts=True)
    # Only rows that might repeat one another need to be looked at one by one.
    single = (counts[numbers] == 1) & (facts["identity"] == 0)
    first: dict[int, int] = {}
    kept = single.copy()
    pairs: list[tuple[int, int]] = []
    by_identity: list[bool] = []
    identities = facts["identity"]
    for row in preferred[~single[preferred]].tolist():
        # Numbers of keys are small and negative here, hashes of identities are not negative.
        names = [-1 - int(numbers[row])]
        if identities[row]:
            names.append(int(identities[row]))
        known = next((name for name in names if name in first), None)
        if known is None:
            first.update(dict.fromkeys(names, row))
            kept[row] = True
        else:
            pairs.append((row, first[known]))
            by_identity.append(known > 0)
    same = np.array(pairs, np.int64).reshape(-1, 2)
    return np.flatnonzero(kept), same, np.array(by_identity, np.bool_)


def _bytes(keys: Array) -> Array:
    """Keys uint64 [n, 2] as uint8 [n, 16], in the order of their hexadecimal digits."""
    result: Array = keys.astype(">u8").view(np.uint8).reshape(len(keys), 16)
    return result


def _hex(keys: Array) -> list[str]:
    return [bytes(key).hex() for key in _bytes(keys)]
