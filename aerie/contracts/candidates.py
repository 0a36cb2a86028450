"""The index of candidates: what other datasets need to know of them, in the order of rank.

`candidates.safetensors` lies beside `candidates.parquet` and has a row for each of its rows:
`keys uint8 [n, 16]`, `bands uint32 [32, n]`, `bits uint8 [n, 128]` (`aerie.prompts.near`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from aerie.errors import ContractError
from aerie.files import replacing, saving_tensors

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Index:
    """Keys and signatures of candidates: see the module for shapes and types."""

    keys: Array
    bands: Array
    bits: Array

    def __len__(self) -> int:
        return len(self.keys)

    def head(self, start: int, stop: int) -> "Index":
        """The index of some of the rows."""
        return Index(self.keys[start:stop], self.bands[:, start:stop], self.bits[start:stop])


def write_index(path: Path, index: Index) -> None:
    """Write the index of candidates."""
    tensors = {name: np.ascontiguousarray(value) for name, value in vars(index).items()}
    with replacing(path) as scratch, saving_tensors(path):
        safetensors.numpy.save_file(tensors, scratch)


def read_index(path: Path) -> Index:
    """Read the index of candidates.

    Raises:
        ContractError: the file is missing or damaged.
    """
    try:
        tensors = safetensors.numpy.load_file(path)
        index = Index(tensors["keys"], tensors["bands"], tensors["bits"])
        if problem := _problem(index):
            raise ValueError(problem)
        return index
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ContractError(
            f"{path} is not a readable index of candidates",
            saw=error,
            expected="safetensors with keys, bands and bits",
            remedy=f"remove {path.with_suffix('.json')} and run the build again",
        ) from error


def _problem(index: Index) -> str | None:
    rows = len(index.keys) if index.keys.ndim else -1
    found = [(each.shape, str(each.dtype)) for each in vars(index).values()]
    wanted = [((rows, 16), "uint8"), ((32, rows), "uint32"), ((rows, 128), "uint8")]
    return None if found == wanted else f"shapes and types {found}"
