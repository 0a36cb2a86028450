"""States: hidden states of prompt + response, in safetensors files that are written in place.

A file holds `token_ids` int32 [T], `loss_mask` uint8 [T], `offsets` int64 [n+1], `aux` bf16
[T, A*H] and `last` bf16 [T, H], samples back to back and never padded. With the codec fp8 these two
are e4m3, and `aux_scale` float32 [T, A] and `last_scale` float32 [T, 1] are beside them. With the
codec teacher `top_ids` int32 [T, k], `top_logprobs` float16 [T, k] and `tail` float32 [T, 1] are in
the place of `last`, and `aux` is in bf16 or fp8. The header carries the key of the content and an
xxh3-128 of each tensor, so that a file vouches for itself before the part's `index.json`, written
last, exists.
Layout: https://github.com/huggingface/safetensors#format.
"""

import json
import math
import os
import struct
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from aerie.contracts import VERSIONS, codecs
from aerie.contracts.codecs import Codec, Teacher
from aerie.errors import ContractError
from aerie.files import digest_json, fsync_directory

if TYPE_CHECKING:
    import torch

_DTYPE_BYTES = {"I32": 4, "U8": 1, "I64": 8, "BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}
_ALIGNMENT = 64
_NO_DIGEST = "0" * 32


@dataclass(frozen=True)
class Sample:
    """One sample of a states file: int32 [t], uint8 [t], bf16 [t, A*H] and bf16 [t, H].

    As stored with fp8, states are e4m3 and scales float32 [t, A] and [t, 1]; else there are none.
    With the codec teacher `last` is None, and `top_ids` int32 [t, k], `top_logprobs` float16 [t, k]
    and `tail` float32 [t, 1] stand for it (`aerie.contracts.teacher`).
    """

    token_ids: "torch.Tensor"
    loss_mask: "torch.Tensor"
    aux: "torch.Tensor"
    last: "torch.Tensor | None"
    aux_scale: "torch.Tensor | None" = None
    last_scale: "torch.Tensor | None" = None
    top_ids: "torch.Tensor | None" = None
    top_logprobs: "torch.Tensor | None" = None
    tail: "torch.Tensor | None" = None

    def final(self) -> "torch.Tensor":
        """`last`, for those who cannot do without it.

        Raises:
            ContractError: the codec is `teacher`.
        """
        if self.last is None:
            raise ContractError(
                "the sample has no final state, its codec is `teacher`",
                expected="states.codec bf16 or fp8",
                remedy="set `states.codec: bf16` or `fp8` and run the build again",
            )
        return self.last

    def encoded(self, width: int) -> "Sample":
        """The same with states in fp8; `width` is that of one layer."""
        aux, aux_scale = codecs.encode(self.aux, width)
        if self.last is None:
            return replace(self, aux=aux, aux_scale=aux_scale)
        last, last_scale = codecs.encode(self.last, width)
        return replace(self, aux=aux, last=last, aux_scale=aux_scale, last_scale=last_scale)

    def decoded(self) -> "Sample":
        """The same with states in bf16."""
        if self.aux_scale is None:
            return self
        aux, last = codecs.decode(self.aux, self.aux_scale), self.last
        if last is not None and self.last_scale is not None:
            last = codecs.decode(last, self.last_scale)
        return replace(self, aux=aux, last=last, aux_scale=None, last_scale=None)


def shifted(tokens: "torch.Tensor", by: int) -> "torch.Tensor":
    """Ids or mask of the token `by` places ahead of each, [t] like `tokens`; zeros past the end.

    A sample is read through here alone, so that its ids and its mask cannot be shifted apart
    (sgl-project/SpecForge issue 885 trained one off).
    """
    import torch

    return torch.cat((tokens[by:], torch.zeros_like(tokens[:by])))


def token_bytes(
    aux_width: int, last_width: int, codec: Codec = "bf16", teacher: Teacher | None = None
) -> int:
    """Bytes of one token in a states file; `teacher` says more of the codec of that name."""
    shapes = _shapes([1], aux_width, last_width, codec, teacher or Teacher())
    return sum(_size(*shape) for name, shape in shapes.items() if name != "offsets")


def _shapes(
    lengths: list[int], aux_width: int, last_width: int, codec: Codec, teacher: Teacher
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of each tensor of a file, in the order in which they lie there."""
    total, dtypes = sum(lengths), {"bf16": "BF16", "fp8": "F8_E4M3"}
    aux = teacher.aux if codec == "teacher" else codec
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"aux": (dtypes[aux], (total, aux_width))}
    if codec == "teacher":
        shapes["top_ids"] = ("I32", (total, teacher.k))
        shapes["top_logprobs"] = ("F16", (total, teacher.k))
        shapes["tail"] = ("F32", (total, 1))
    else:
        shapes["last"] = (dtypes[codec], (total, last_width))
    shapes["loss_mask"] = ("U8", (total,))
    shapes["offsets"] = ("I64", (len(lengths) + 1,))
    shapes["token_ids"] = ("I32", (total,))
    if aux == "fp8":
        shapes["aux_scale"] = ("F32", (total, aux_width // last_width))
    if codec == "fp8":
        shapes["last_scale"] = ("F32", (total, 1))
    return shapes


def file_key(samples: list[tuple[list[int], list[int]]], provenance: dict[str, Any]) -> str:
    """Digest of what a states file is made from: its token ids and how they were captured.

    A sample is (prompt ids, output ids): where the answer begins is part of the file, in
    `loss_mask`.
    """
    return digest_json({"samples": samples, "contract": VERSIONS["states"], **provenance})


class StatesWriter:
    """Writes one states file; it appears under its name only when every sample is in it.

    Use as a context manager and call `add` once for each of `lengths`, in order. States are given
    in bf16, whatever the codec; with the codec teacher, what stands for `last` is given as it is.
    """

    def __init__(
        self, path: Path, lengths: list[int], aux_width: int, last_width: int, key: str,
        codec: Codec = "bf16", teacher: Teacher | None = None,
    ) -> None:  # fmt: skip
        self.path, self._lengths, self._key, self._width = path, lengths, key, last_width
        self._shapes = _shapes(lengths, aux_width, last_width, codec, teacher or Teacher())
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
            "top_ids": torch.int32,
            "top_logprobs": torch.float16,
            "tail": torch.float32,
        }
        if self._next == len(self._lengths):
            raise ContractError(f"{self.path}: more samples than announced", expected=self._next)
        length = self._lengths[self._next]
        for name, dtype in dtypes.items():
            if name not in self._shapes:
                continue
            tensor = getattr(sample, name)
            saw = None if tensor is None else (tensor.dtype, *tensor.shape)
            expected = (dtype, length, *self._shapes[name][1][1:])
            if saw != expected:
                raise ContractError(
                    f"{self.path}: {name} of sample {self._next} has the wrong shape or dtype",
                    saw=saw,
                    expected=expected,
                    remedy="the engine lost rows or captured other layers: see docs/states.md",
                )
        stored = sample.encoded(self._width) if "aux_scale" in self._shapes else sample
        for name in self._shapes.keys() - {"offsets"}:
            # numpy knows neither bf16 nor fp8.
            raw = getattr(stored, name).detach().contiguous().view(torch.uint8)
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
    """Random access to the samples of one states file.

    Samples are read by calls and not through a memory map: a page fault for each 4 KB costs more
    than the copy, and what a map has read counts as the process's memory.

    Raises:
        ContractError: the file is missing, truncated or of another contract version.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            self._file: Any = safe_open(path, framework="pt")
            self.metadata: dict[str, str] = self._file.metadata() or {}
            self._names = self._tensor_names()
            self.offsets: list[int] = self._offsets()
            self._descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor)
            self._places = self._read_places()
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

    def _tensor_names(self) -> list[str]:
        """Those with a row for each token; a file without `last` has what stands for it."""
        there = set(self._file.keys())
        final = ["last"] if "last" in there else ["top_ids", "top_logprobs", "tail"]
        scales = sorted({"aux_scale", "last_scale"} & there)
        return ["token_ids", "loss_mask", "aux", *final, *scales]

    @property
    def names(self) -> list[str]:
        """Names of its tensors."""
        return [*self._names, "offsets"]

    def _offsets(self) -> list[int]:
        """Where samples begin, checked against the header: a wrong one would mix samples up."""
        shapes = {name: self.shape(name) for name in self._names}
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
        return self.stored(index).decoded()

    def stored(self, index: int) -> Sample:
        """A sample as it lies in the file: a GPU decodes faster than what reads it."""
        index = range(len(self))[index]
        start, end = self.offsets[index], self.offsets[index + 1]
        rows: dict[str, Any] = {name: self._rows(name, start, end) for name in self._names}
        return Sample(**{"last": None, **rows})

    def _rows(self, name: str, start: int, end: int) -> "torch.Tensor":
        import torch

        shape = self.shape(name)[1:]
        dtype: torch.dtype = self._file.get_slice(name)[:0].dtype
        rows = torch.empty((end - start, *shape), dtype=dtype)
        left = memoryview(rows.flatten().view(torch.uint8).numpy().data)
        position = self._places[name][0] + start * math.prod(shape) * dtype.itemsize
        # Linux reads 2 GiB at most in one call.
        while left:
            read = os.preadv(self._descriptor, [left], position)
            if not read:
                raise ContractError(
                    f"{self.path} ends inside {name}",
                    saw=f"{self.path.stat().st_size:,} bytes",
                    remedy="run `make verify ARGS=--repair`, then the build: only this file is "
                    "redone",
                )
            position += read
            left = left[read:]
        return rows

    def _read_places(self) -> dict[str, tuple[int, int]]:
        """Where each tensor begins and ends in the file, in bytes."""
        size = struct.unpack("<Q", os.pread(self._descriptor, 8, 0))[0]
        header = json.loads(os.pread(self._descriptor, size, 8))
        header.pop("__metadata__", None)
        places = {name: entry["data_offsets"] for name, entry in header.items()}
        return {name: (8 + size + a, 8 + size + b) for name, (a, b) in places.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, without reading it."""
        return tuple(self._file.get_slice(name).get_shape())

    def column(self, name: str) -> "torch.Tensor":
        """One whole tensor of the file, all samples back to back."""
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def damaged_tensors(self, names: Collection[str] | None = None) -> list[str]:
        """Which tensors, all or those of `names`, do not match the digests in the header."""
        damaged = []
        for name, (position, end) in self._places.items():
            if names is not None and name not in names:
                continue
            state = xxhash.xxh3_128()
            while chunk := os.pread(self._descriptor, min(1 << 24, end - position), position):
                state.update(chunk)
                position += len(chunk)
            if state.hexdigest() != self.metadata.get(f"xxh3.{name}"):
                damaged.append(name)
        return damaged
