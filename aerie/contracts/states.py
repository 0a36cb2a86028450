"""States: hidden states of prompt + response, in safetensors files that are written in place.

A file holds `token_ids` int32 [T], `loss_mask` uint8 [T], `offsets` int64 [n+1], `aux` bf16
[T, A*H] and `last` bf16 [T, H], samples back to back and never padded. Its header carries the key
of its content and an xxh3-128 of each tensor, so that a file vouches for itself before the part's
`index.json`, written last, exists. Layout: https://github.com/huggingface/safetensors#format.
"""

import json
import os
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from aerie.contracts import VERSIONS
from aerie.contracts.sidecar import described
from aerie.errors import ConfigError, ContractError
from aerie.files import digest_json, fsync_directory, read_json, write_sealed

if TYPE_CHECKING:
    import torch

_DTYPE_BYTES = {"I32": 4, "U8": 1, "I64": 8, "BF16": 2}
_ALIGNMENT = 64
_NO_DIGEST = "0" * 32


@dataclass(frozen=True)
class Layers:
    """The captured layers in both conventions.

    `hf_hidden_states` are indices into transformers' `output_hidden_states` (0 is the embedding);
    `sglang_config` is what a draft's `eagle_aux_hidden_state_layer_ids` says: one less.
    """

    hf_hidden_states: tuple[int, ...]

    @property
    def sglang_config(self) -> tuple[int, ...]:
        return tuple(layer - 1 for layer in self.hf_hidden_states)

    def as_dict(self) -> dict[str, list[int]]:
        return {
            "hf_hidden_states": list(self.hf_hidden_states),
            "sglang_config": list(self.sglang_config),
        }


def choose_layers(count: int, wanted: Iterable[int] | None = None) -> Layers:
    """The layers to capture of a target with `count` layers; the default is [2, N//2, N-3].

    Raises:
        ConfigError: a wanted layer does not exist, or the list is not strictly ascending.
    """
    layers = tuple(wanted) if wanted else (2, count // 2, count - 3)
    ascending = all(a < b for a, b in pairwise(layers))
    # SGLang cannot capture the output of the last layer: that state is `last`, after the norm.
    if not ascending or not all(1 <= layer < count for layer in layers):
        raise ConfigError(
            "states.layers names layers that cannot be captured",
            saw=list(layers),
            expected=f"ascending indices from 1 to {count - 1}: the target has {count} layers",
            remedy=f"leave the key out for the default {[2, count // 2, count - 3]}",
        )
    return Layers(layers)


@dataclass(frozen=True)
class Sample:
    """One sample of a states file: int32 [t], uint8 [t], bf16 [t, A*H] and bf16 [t, H]."""

    token_ids: "torch.Tensor"
    loss_mask: "torch.Tensor"
    aux: "torch.Tensor"
    last: "torch.Tensor"


def shifted(tokens: "torch.Tensor", by: int) -> "torch.Tensor":
    """Ids or mask of the token `by` places ahead of each, [t] like `tokens`; zeros past the end.

    A sample is read through here alone, so that its ids and its mask cannot be shifted apart
    (sgl-project/SpecForge issue 885 trained one off).
    """
    import torch

    return torch.cat((tokens[by:], torch.zeros_like(tokens[:by])))


def token_bytes(aux_width: int, last_width: int) -> int:
    """Bytes of one token in a states file."""
    return _DTYPE_BYTES["BF16"] * (aux_width + last_width) + _DTYPE_BYTES["I32"] + 1


def file_key(samples: list[tuple[list[int], list[int]]], provenance: dict[str, Any]) -> str:
    """Digest of what a states file is made from: its token ids and how they were captured.

    A sample is (prompt ids, output ids): where the answer begins is part of the file, in
    `loss_mask`.
    """
    return digest_json({"samples": samples, "contract": VERSIONS["states"], **provenance})


class StatesWriter:
    """Writes one states file; it appears under its name only when every sample is in it.

    Use as a context manager and call `add` once for each of `lengths`, in order.
    """

    def __init__(
        self, path: Path, lengths: list[int], aux_width: int, last_width: int, key: str
    ) -> None:
        total = sum(lengths)
        self.path, self._lengths, self._key = path, lengths, key
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "aux": ("BF16", (total, aux_width)),
            "last": ("BF16", (total, last_width)),
            "loss_mask": ("U8", (total,)),
            "offsets": ("I64", (len(lengths) + 1,)),
            "token_ids": ("I32", (total,)),
        }
        self._hashes = {name: xxhash.xxh3_128() for name in self._shapes}
        self._positions, self._data_bytes = _positions(self._shapes)
        self._data_start = len(self._header({}))
        self._next = 0
        self._scratch = path.with_name(f".{path.name}.tmp")

    def __enter__(self) -> "StatesWriter":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.posix_fallocate(self._descriptor, 0, self._data_start + self._data_bytes)
        except OSError as error:
            os.close(self._descriptor)
            self._scratch.unlink()
            raise ContractError(
                f"{self.path}: no room for the file",
                saw=error,
                expected=f"{self._data_start + self._data_bytes:,} bytes",
                remedy="free the disk that holds it and run the build again: it continues",
            ) from error
        self._write("offsets", np.cumsum([0, *self._lengths], dtype="<i8").data)
        return self

    def add(self, sample: Sample) -> None:
        """Append the next sample.

        Raises:
            ContractError: it was not announced, or its number of rows, a width or a dtype is not
                what was announced.
        """
        import torch

        dtypes = {
            "token_ids": torch.int32,
            "loss_mask": torch.uint8,
            "aux": torch.bfloat16,
            "last": torch.bfloat16,
        }
        if self._next == len(self._lengths):
            raise ContractError(f"{self.path}: more samples than announced", expected=self._next)
        length = self._lengths[self._next]
        for name, dtype in dtypes.items():
            tensor = getattr(sample, name)
            saw = (tensor.dtype, *tensor.shape)
            expected = (dtype, length, *self._shapes[name][1][1:])
            if saw != expected:
                raise ContractError(
                    f"{self.path}: {name} of sample {self._next} has the wrong shape or dtype",
                    saw=saw,
                    expected=expected,
                    remedy="the engine lost rows or captured other layers: see docs/states.md",
                )
            raw = tensor.detach().contiguous()
            raw = raw.view(torch.int16) if dtype == torch.bfloat16 else raw
            self._write(name, raw.numpy().data)
        self._next += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._descriptor)
            self._scratch.unlink(missing_ok=True)

    def _finish(self) -> None:
        if self._next != len(self._lengths):
            raise ContractError(
                f"{self.path}: samples are missing", saw=self._next, expected=len(self._lengths)
            )
        digests = {name: state.hexdigest() for name, state in self._hashes.items()}
        os.pwrite(self._descriptor, self._header(digests), 0)
        os.fsync(self._descriptor)
        self._scratch.replace(self.path)
        fsync_directory(self.path.parent)

    def _write(self, name: str, data: memoryview) -> None:
        if not data.nbytes:
            return
        left = data.cast("B")
        self._hashes[name].update(left)
        # Linux writes 2 GiB at most in one call, and a long sample of a large target is more.
        while left:
            written = os.pwrite(self._descriptor, left, self._data_start + self._positions[name])
            self._positions[name] += written
            left = left[written:]

    def _header(self, digests: dict[str, str]) -> bytes:
        entries: dict[str, Any] = {
            "__metadata__": {
                "contract": str(VERSIONS["states"]),
                "key": self._key,
                **{f"xxh3.{name}": digests.get(name, _NO_DIGEST) for name in self._shapes},
            }
        }
        start = 0
        for name, (dtype, shape) in self._shapes.items():
            size = _size(dtype, shape)
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
            start += size
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % _ALIGNMENT)
        return struct.pack("<Q", len(text)) + text


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return _DTYPE_BYTES[dtype] * int(np.prod(shape, dtype=np.int64))


def _positions(shapes: dict[str, tuple[str, tuple[int, ...]]]) -> tuple[dict[str, int], int]:
    positions, start = {}, 0
    for name, (dtype, shape) in shapes.items():
        positions[name] = start
        start += _size(dtype, shape)
    return positions, start


class StatesFile:
    """Random access to the samples of one states file, through a memory map.

    Raises:
        ContractError: the file is missing, truncated or of another contract version.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            self._file: Any = safe_open(path, framework="pt")
            self.metadata: dict[str, str] = self._file.metadata() or {}
            self.offsets: list[int] = self._offsets()
        except (OSError, SafetensorError, ValueError) as error:
            raise ContractError(
                f"{path} is not a whole states file",
                saw=error,
                remedy="run `make verify ARGS=--repair`, then the build: only this file is redone",
            ) from error
        if self.metadata.get("contract") != str(VERSIONS["states"]):
            raise ContractError(
                f"{path} is of another contract version",
                saw=self.metadata.get("contract"),
                expected=VERSIONS["states"],
            )

    def _offsets(self) -> list[int]:
        """Where samples begin, checked against the header: a wrong one would mix samples up."""
        shapes = {name: self.shape(name) for name in ("token_ids", "loss_mask", "aux", "last")}
        offsets = self._file.get_tensor("offsets")
        if offsets.dim() != 1 or offsets.is_floating_point() or not len(offsets):
            raise ValueError(f"offsets are {offsets.dtype} {tuple(offsets.shape)}")
        places: list[int] = offsets.tolist()
        if places[0] != 0 or any(a > b for a, b in pairwise(places)):
            raise ValueError("offsets that do not ascend from 0")
        if wrong := {name: shape for name, shape in shapes.items() if shape[:1] != (places[-1],)}:
            raise ValueError(f"{places[-1]} tokens by the offsets, and shapes {wrong}")
        return places

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        start, end = self.offsets[index], self.offsets[index + 1]
        names = ("token_ids", "loss_mask", "aux", "last")
        return Sample(*(self._file.get_slice(name)[start:end] for name in names))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, without reading it."""
        return tuple(self._file.get_slice(name).get_shape())

    def column(self, name: str) -> "torch.Tensor":
        """One whole tensor of the file, all samples back to back."""
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def damaged_tensors(self, names: Collection[str] | None = None) -> list[str]:
        """Which tensors, all or those of `names`, do not match the digests in the header."""
        with self.path.open("rb") as stream:
            size = struct.unpack("<Q", stream.read(8))[0]
            header = json.loads(stream.read(size))
            header.pop("__metadata__")
            damaged = []
            for name, entry in header.items():
                if names is not None and name not in names:
                    continue
                start, end = entry["data_offsets"]
                stream.seek(8 + size + start)
                state = xxhash.xxh3_128()
                while start < end and (chunk := stream.read(min(1 << 24, end - start))):
                    state.update(chunk)
                    start += len(chunk)
                if state.hexdigest() != self.metadata.get(f"xxh3.{name}"):
                    damaged.append(name)
        return damaged


def write_index(
    path: Path,
    files: dict[str, list[str]],
    layers: Layers,
    counts: dict[str, Any],
    provenance: dict[str, Any],
) -> None:
    """Write a part's `index.json`: `files` maps each file name to the ids of its samples."""
    entries = {}
    for name, ids in files.items():
        metadata = StatesFile(path.parent / name).metadata
        entries[name] = {
            "bytes": (path.parent / name).stat().st_size,
            "key": metadata.get("key", ""),
            "samples": ids,
            "xxh3": {k.removeprefix("xxh3."): v for k, v in metadata.items() if "xxh3." in k},
        }
    index = {
        "artifact": "states",
        "contract": VERSIONS["states"],
        "files": entries,
        "layers": layers.as_dict(),
        "counts": counts,
        "provenance": provenance,
    }
    write_sealed(path, index)


def damage(path: Path) -> list[str]:
    """What is wrong with the files that the index at `path` describes; empty if nothing is.

    Raises:
        ContractError: it does not describe them.
    """
    problems = []
    for name, entry in described(path, read_json(path)).items():
        file = path.parent / name
        try:
            states = StatesFile(file)
        except ContractError as error:
            problems.append(f"{file}: {error.saw or error.what}")
            continue
        if states.metadata.get("key") != entry.get("key"):
            problems.append(f"{file}: holds other samples than the index says")
        elif damaged := states.damaged_tensors():
            problems.append(f"{file}: {', '.join(damaged)} changed since it was written")
    return problems
