"""States: hidden states of prompt + response, in safetensors files that are written in place.

A file holds `token_ids` int32 [T], `loss_mask` uint8 [T], `offsets` int64 [n+1], `aux` bf16
[T, A*H] and `last` bf16 [T, H], samples back to back and never padded. With the codec fp8 these two
are e4m3, and `aux_scale` float32 [T, A] and `last_scale` float32 [T, 1] are beside them. With the
codec teacher `top_ids` int32 [T, k], `top_logprobs` float16 [T, k] and `tail` float32 [T, 1] are in
the place of `last`, and `aux` is in bf16 or fp8.

A file vouches for itself before the part's `index.json`, written last, exists: its header carries
the key of its content and an xxh3-128 of each tensor, and `sample_xxh3` uint8 [n, 16] is that of
each sample (of those of its `token_ids`, `loss_mask`, `aux`, `last`, `top_ids`, `top_logprobs`,
`tail`, `aux_scale` and `last_scale` that there are, one after the other), which is checked whenever
the sample is read.
Layout: https://github.com/huggingface/safetensors#format.
"""

import json
import math
import os
import struct
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from aerie.contracts import VERSIONS, codecs
from aerie.contracts.codecs import Codec, Teacher
from aerie.errors import ContractError
from aerie.files import digest_json

if TYPE_CHECKING:
    import torch

DTYPE_BYTES = {"I32": 4, "U8": 1, "I64": 8, "BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}
DIGEST_BYTES = 16
# Of each tensor: what it may consist of, and how many dimensions it has.
_KINDS = {
    "token_ids": (("I32",), 1),
    "loss_mask": (("U8",), 1),
    "aux": (("BF16", "F8_E4M3"), 2),
    "last": (("BF16", "F8_E4M3"), 2),
    "top_ids": (("I32",), 2),
    "top_logprobs": (("F16",), 2),
    "tail": (("F32",), 2),
    "aux_scale": (("F32",), 2),
    "last_scale": (("F32",), 2),
    "offsets": (("I64",), 1),
    "sample_xxh3": (("U8",), 2),
}
# What is read and hashed in one go stays in a core's cache between the two.
_CHUNK_BYTES = 1 << 20
_REMEDY = "run `make verify ARGS=--repair`, then the build: only this file is redone"


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
    shapes = tensor_shapes([1], aux_width, last_width, codec, teacher or Teacher())
    rows = shapes.keys() - {"offsets", "sample_xxh3"}
    return sum(DTYPE_BYTES[shapes[name][0]] * math.prod(shapes[name][1]) for name in rows)


def tensor_shapes(
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
    shapes["sample_xxh3"] = ("U8", (len(lengths), DIGEST_BYTES))
    return shapes


def file_key(samples: list[tuple[list[int], list[int]]], provenance: dict[str, Any]) -> str:
    """Digest of what a states file is made from: its token ids and how they were captured.

    A sample is (prompt ids, output ids): where the answer begins is part of the file, in
    `loss_mask`.
    """
    return digest_json({"samples": samples, "contract": VERSIONS["states"], **provenance})


class Stretch(NamedTuple):
    """Memory for some rows of a sample: `rows` [m, ...] are those from row `first` on."""

    rows: "torch.Tensor"
    first: int = 0


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
            self._check_version()
            self._names = self._tensor_names()
            self._check_kinds()
            self.offsets: list[int] = self._offsets()
            self._digests: list[bytes] = [
                bytes(each) for each in self._file.get_tensor("sample_xxh3").numpy()
            ]
            self._descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor)
            self.places = self._read_places()
        except (OSError, SafetensorError, ValueError) as error:
            raise ContractError(
                f"{path} is not a whole states file", saw=error, remedy=_REMEDY
            ) from error

    def _check_version(self) -> None:
        if self.metadata.get("contract") != str(VERSIONS["states"]):
            raise ContractError(
                f"{self.path} is of another contract version",
                saw=self.metadata.get("contract"),
                expected=VERSIONS["states"],
                remedy="run the build: states of another version are captured again",
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
        return [*self._names, "offsets", "sample_xxh3"]

    def _check_kinds(self) -> None:
        for name in self.names:
            found, (dtypes, dimensions) = self._file.get_slice(name), _KINDS[name]
            dtype, shape = found.get_dtype(), found.get_shape()
            if dtype not in dtypes or len(shape) != dimensions:
                raise ValueError(f"{name} is {dtype} {shape}")

    def _offsets(self) -> list[int]:
        """Where samples begin, checked against the header: a wrong one would mix samples up."""
        shapes = {name: self.shape(name) for name in self._names}
        places: list[int] = self._file.get_tensor("offsets").tolist()
        if not places or places[0] != 0 or any(a > b for a, b in pairwise(places)):
            raise ValueError("offsets that do not ascend from 0")
        if wrong := {name: shape for name, shape in shapes.items() if shape[:1] != (places[-1],)}:
            raise ValueError(f"{places[-1]} tokens by the offsets, and shapes {wrong}")
        if (shape := self.shape("sample_xxh3")) != (len(places) - 1, DIGEST_BYTES):
            raise ValueError(f"{len(places) - 1} samples by the offsets, and digests {shape}")
        return places

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Sample:
        return self.stored(index).decoded()

    def stored(self, index: int) -> Sample:
        """A sample as it lies in the file: a GPU decodes faster than what reads it.

        Raises:
            ContractError: it is not what was written.
        """
        index = range(len(self))[index]
        length = self.offsets[index + 1] - self.offsets[index]
        parts: dict[str, Any] = {
            name: like.new_empty(length, *like.shape[1:]) for name, like in self.like.items()
        }
        self.read(index, {name: Stretch(rows) for name, rows in parts.items()})
        return Sample(**{"last": None, **parts})

    @cached_property
    def like(self) -> "dict[str, torch.Tensor]":
        """No row of each tensor that a sample has, of the file's dtype and width."""
        return {name: self._file.get_slice(name)[:0] for name in self._names}

    def read(self, index: int, into: Mapping[str, Stretch]) -> None:
        """Read rows of tensors of a sample into contiguous memory, which is not touched twice.

        What is not asked for is read for the digest alone. Tensors are as they lie in the file.

        Raises:
            ContractError: the sample is not what was written.
        """
        state = xxhash.xxh3_128()
        # The disk begins with all of it now, not with a little more at each call.
        for name in self._names:
            position, size = self._place(index, name)
            if size:
                os.posix_fadvise(self._descriptor, position, size, os.POSIX_FADV_WILLNEED)
        for name in self._names:
            width = self._row_bytes(name)
            position, size = self._place(index, name)
            for chunk in _chunks(into.get(name), width, size):
                self._fill(name, chunk, position)
                state.update(chunk)
                position += len(chunk)
        if state.digest() != self._digests[index]:
            raise ContractError(
                f"{self.path}: sample {index} changed since it was written",
                saw=f"bytes of digest {state.hexdigest()}",
                expected=self._digests[index].hex(),
                remedy=_REMEDY,
            )

    def _place(self, index: int, name: str) -> tuple[int, int]:
        """Where a sample's rows of a tensor begin in the file, and their size, in bytes."""
        start, end = self.offsets[index], self.offsets[index + 1]
        width = self._row_bytes(name)
        return self.places[name][0] + start * width, (end - start) * width

    def _row_bytes(self, name: str) -> int:
        like = self.like[name]
        return math.prod(like.shape[1:]) * like.dtype.itemsize

    def _fill(self, name: str, chunk: memoryview, position: int) -> None:
        while chunk:
            read = os.preadv(self._descriptor, [chunk], position)
            if not read:
                raise ContractError(
                    f"{self.path} ends inside {name}",
                    saw=f"{self.path.stat().st_size:,} bytes",
                    remedy=_REMEDY,
                )
            position += read
            chunk = chunk[read:]

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
        for name, (position, end) in self.places.items():
            if names is not None and name not in names:
                continue
            state = xxhash.xxh3_128()
            while chunk := os.pread(self._descriptor, min(1 << 24, end - position), position):
                state.update(chunk)
                position += len(chunk)
            if state.hexdigest() != self.metadata.get(f"xxh3.{name}"):
                damaged.append(name)
        return damaged


def _chunks(stretch: Stretch | None, width: int, size: int) -> Iterator[memoryview]:
    """Memory for `size` bytes, rows of `width`, in order: the stretch, and scratch around it."""
    import torch

    wanted, before = memoryview(b""), 0
    if stretch is not None:
        wanted = memoryview(stretch.rows.detach().flatten().view(torch.uint8).numpy().data)
        before = stretch.first * width
    after = size - before - len(wanted)
    scratch = memoryview(bytearray(min(max(before, after), _CHUNK_BYTES)))
    for left in range(before, 0, -_CHUNK_BYTES):
        yield scratch[: min(left, _CHUNK_BYTES)]
    for start in range(0, len(wanted), _CHUNK_BYTES):
        yield wanted[start : start + _CHUNK_BYTES]
    for left in range(after, 0, -_CHUNK_BYTES):
        yield scratch[: min(left, _CHUNK_BYTES)]
