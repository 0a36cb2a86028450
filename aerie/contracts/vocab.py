"""The map and its counts.

`t2d` bool [V] says which target ids the draft has; `d2t` int64 [K] are offsets: target id =
draft id + d2t[draft id]. This is what SGLang reads (`models/llama_eagle3.py`, `hot_token_id`).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aerie.contracts.sidecar import read_whole
from aerie.errors import ContractError
from aerie.files import replacing

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class VocabMap:
    """`target_ids` int64 [K], strictly ascending, of a vocabulary of `vocab_size`."""

    target_ids: Int64
    vocab_size: int

    def __post_init__(self) -> None:
        ids = self.target_ids
        # Compared, not subtracted: a difference of hostile values overflows.
        descends = (ids[1:] <= ids[:-1]).any()
        if len(ids) == 0 or ids[0] < 0 or ids[-1] >= self.vocab_size or descends:
            raise ContractError(
                "the map is not strictly ascending inside the vocabulary",
                expected=f"ids from 0 to {self.vocab_size - 1}",
                remedy="remove vocab/map.json and run the build again",
            )

    @property
    def d2t(self) -> Int64:
        """Offsets, int64 [K]."""
        return self.target_ids - np.arange(len(self.target_ids), dtype=np.int64)

    @property
    def t2d(self) -> npt.NDArray[np.bool_]:
        """Membership, bool [V]."""
        member = np.zeros(self.vocab_size, dtype=np.bool_)
        member[self.target_ids] = True
        return member


def write_counts(path: Path, counts: Int64) -> None:
    """Write how often each target id is supervised, int64 [V]."""
    from safetensors.numpy import save

    with replacing(path) as scratch:
        scratch.write_bytes(save({"counts": counts}))


def read_counts(path: Path) -> Int64:
    """Read supervised counts, int64 [V].

    Raises:
        ContractError: the file is missing or damaged.
    """
    return _load(path, "counts")["counts"]


def write_map(path: Path, vocab: VocabMap) -> None:
    """Write `map.safetensors`, and beside it `t2d.pt` and `d2t.pt` for other tools."""
    import io

    import torch
    from safetensors.numpy import save

    with replacing(path) as scratch:
        scratch.write_bytes(save({"d2t": vocab.d2t, "t2d": vocab.t2d}))
    for name, array in (("t2d", vocab.t2d), ("d2t", vocab.d2t)):
        with replacing(path.with_name(f"{name}.pt")) as scratch:
            # Given a path, torch.save puts the scratch file's random name inside the archive.
            buffer = io.BytesIO()
            torch.save(torch.from_numpy(array), buffer)
            scratch.write_bytes(buffer.getvalue())


def read_map(path: Path) -> VocabMap:
    """Read a map and check its invariants.

    Raises:
        ContractError: the file is missing or damaged, or `t2d` and `d2t` disagree.
    """
    tensors = _load(path, "d2t", "t2d")
    d2t, t2d = tensors["d2t"], tensors["t2d"]
    vocab = VocabMap(d2t + np.arange(len(d2t), dtype=np.int64), len(t2d))
    if not np.array_equal(vocab.t2d, t2d):
        raise ContractError(
            f"{path}: t2d and d2t disagree", remedy=f"remove {path} and run the build again"
        )
    return vocab


def read_vouched_map(sidecar: Path) -> VocabMap:
    """Read the map whose sidecar is `sidecar`, and check it against that.

    Raises:
        ContractError: it is missing or damaged.
    """
    data = sidecar.with_suffix(".safetensors")
    read_whole(sidecar, "map", [data.name])
    return read_map(data)


def _load(path: Path, *names: str) -> dict[str, npt.NDArray[np.int64]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    remedy = f"remove {path} and its sidecar and run the build again"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ContractError(
            f"{path} is not a readable safetensors file", saw=error, remedy=remedy
        ) from error
    if missing := [name for name in names if name not in tensors]:
        raise ContractError(f"{path} lacks {', '.join(missing)}", saw=list(tensors), remedy=remedy)
    return tensors
