"""The map of another project: SpecForge's `vocab_mapping.pt` becomes a map of Aerie."""

import pickle
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aerie.contracts.sidecar import write_sidecar
from aerie.contracts.vocab import VocabMap, write_map
from aerie.errors import ContractError, DataError
from aerie.files import digest_file
from aerie.target import read_target

if TYPE_CHECKING:
    import torch

# An unpickler fails in as many ways as damage can lead it.
_UNREADABLE = (
    OSError, EOFError, RuntimeError, ArithmeticError, AssertionError, AttributeError, LookupError,
    TypeError, ValueError, struct.error, pickle.UnpicklingError, zipfile.BadZipFile,
)  # fmt: skip
_REMEDY = "give the vocab_mapping.pt of SpecForge's scripts/prepare_hidden_states.py"


def import_map(file: Path, out: Path, target: Path | None = None) -> VocabMap:
    """Write `map.safetensors`, `t2d.pt`, `d2t.pt` and the sidecar `map.json` into `out`.

    `file` holds a dict of `t2d`, bool [V], and `d2t`, int64 [K] of offsets, as SpecForge writes it
    (`specforge/data/preprocessing.py`, `generate_vocab_mapping_file`). Of `target`, a target.json,
    the vocabulary must have V ids. Nothing but tensors is unpickled.

    Raises:
        DataError: the file is not such a dict, or it is no map.
        ContractError: `target` is damaged.
    """
    vocab = read_vocab_mapping(file)
    model = read_target(target) if target else None
    if model and model.vocab_size != vocab.vocab_size:
        raise DataError(
            f"{file} is the map of another target",
            saw=f"{vocab.vocab_size:,} target ids",
            expected=f"{model.vocab_size:,}, the vocabulary of {model.name}",
            remedy="give the target that it was made for",
        )
    sidecar, data = out / "map.json", out / "map.safetensors"
    # The old sidecar would vouch for files that are about to change.
    sidecar.unlink(missing_ok=True)
    write_map(data, vocab)
    write_sidecar(
        sidecar,
        "map",
        [data, out / "t2d.pt", out / "d2t.pt"],
        {"size": len(vocab.target_ids), "vocab_size": vocab.vocab_size},
        {"target": model.revision if model else None, "imported": digest_file(file)},
    )
    return vocab


def read_vocab_mapping(file: Path) -> VocabMap:
    """Read SpecForge's map.

    Raises:
        DataError: the file is not a dict of `t2d` and `d2t`, or it is no map.
    """
    import torch

    try:
        # torch.load would take a file of before 2020 too, by a reader with fewer checks.
        with zipfile.ZipFile(file) as archive:
            # torch.save compresses nothing; what is compressed may unpack to any size.
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise zipfile.BadZipFile("its entries are compressed")
        content = torch.load(file, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise DataError(
            f"{file} cannot be read as tensors alone",
            saw=str(error).splitlines()[0] if str(error) else type(error).__name__,
            expected="a file of torch.save with the tensors t2d and d2t",
            remedy=_REMEDY,
        ) from error
    t2d = _tensor(file, content, "t2d", torch.bool)
    d2t = _tensor(file, content, "d2t", torch.int64)
    try:
        vocab = VocabMap(d2t + np.arange(len(d2t), dtype=np.int64), len(t2d))
    except ContractError as error:
        raise DataError(
            f"{file}: d2t is no map",
            saw=f"{len(d2t):,} offsets",
            expected=f"target ids d2t[i] + i that ascend strictly from 0 to {len(t2d) - 1:,}",
            remedy=_REMEDY,
        ) from error
    if not np.array_equal(vocab.t2d, t2d):
        raise DataError(
            f"{file}: t2d and d2t disagree",
            saw=f"{int(t2d.sum()):,} ids in t2d, {len(d2t):,} in d2t, "
            f"{int((vocab.t2d != t2d).sum()):,} in one alone",
            expected="t2d true at d2t[i] + i and nowhere else",
            remedy=_REMEDY,
        )
    return vocab


def _tensor(file: Path, content: Any, name: str, dtype: "torch.dtype") -> "np.ndarray[Any, Any]":
    import torch

    value = content.get(name) if isinstance(content, dict) else None
    if (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.dim() == 1
        and value.dtype == dtype
        # A view may claim to be larger than the file that it came from.
        and value.is_contiguous()
    ):
        array: np.ndarray[Any, Any] = value.numpy()
        return array
    saw = type(value if isinstance(content, dict) else content).__name__
    if isinstance(value, torch.Tensor):
        saw = f"{value.dtype} {list(value.shape)}"
    raise DataError(
        f"{file}: {name} is not what a map has",
        saw=saw,
        expected=f"a tensor of one dimension and {dtype}",
        remedy=_REMEDY,
    )
