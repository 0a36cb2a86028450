"""What a dataset's candidates repeat of the datasets that come before it in the mix.

Everything is compared with all candidates of the earlier datasets, selected or not, so that no take
changes another dataset.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aerie.contracts.candidates import Index, read_index
from aerie.contracts.prompts import Reason
from aerie.contracts.sidecar import read_whole
from aerie.prompts.codepoints import Array
from aerie.prompts.near import near_other


@dataclass(frozen=True)
class Repeat:
    """A candidate that an earlier dataset has: exactly, or nearly, as the prompt `id`."""

    dataset: str
    id: str
    reason: Reason


def repeats(index: Index, earlier: list[Path]) -> dict[int, Repeat]:
    """The rows of `index` that an earlier dataset has, each with the first that has it.

    `earlier` are files `candidates.json` in priority order.

    Raises:
        ContractError: one of them or its index is missing or damaged.
    """
    found: dict[int, Repeat] = {}
    for path in earlier:
        index_file = path.with_suffix(".safetensors")
        sidecar = read_whole(path, "candidates", [index_file.name])
        name, other = sidecar["provenance"]["dataset"], read_index(index_file)
        same = _same(index, other)
        near = near_other(index.bands, index.bits, other.bands, other.bits)
        for reason, pairs in ((Reason.DUPLICATE, same), (Reason.NEAR_DUPLICATE, near)):
            for row, theirs in zip(*(side.tolist() for side in pairs), strict=True):
                id = f"{name}-{bytes(other.keys[theirs]).hex()}"
                found.setdefault(row, Repeat(name, id, reason))
    return found


def _same(mine: Index, other: Index) -> tuple[Array, Array]:
    """Rows of both with the same key."""
    _, rows, theirs = np.intersect1d(
        _keys(mine), _keys(other), assume_unique=True, return_indices=True
    )
    return rows, theirs


def _keys(index: Index) -> Array:
    return np.ascontiguousarray(index.keys).view("V16").reshape(-1)
