"""The writer of a states file: samples come one by one, the file appears when all are in it.

The caller's thread copies and hashes, others encode, and two write (`BlockWriter`), so that the
slowest of them sets the rate. Memory does not grow with the file.
"""

import json
import os
import struct
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from aerie.contracts import VERSIONS, codecs
from aerie.contracts.blocks import BlockWriter, Bytes
from aerie.contracts.codecs import Codec, Teacher
from aerie.contracts.states import DTYPE_BYTES, Sample, tensor_shapes
from aerie.errors import ContractError
from aerie.files import fsync_directory

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64
_NO_DIGEST = "0" * 32
# What is copied and hashed in one go stays in a core's cache between the two.
_CHUNK_BYTES = 1 << 20
# And between the two passes of encoding.
_ENCODED_BYTES = 1 << 19
_MOST_ENCODERS = 8


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
        self._shapes = tensor_shapes(lengths, aux_width, last_width, codec, teacher or Teacher())
        self._hashes = {name: xxhash.xxh3_128() for name in self._shapes}
        self._header_bytes = len(self._header({}))
        self._next = 0
        self._scratch = path.with_name(f".{path.name}.tmp")

    def __enter__(self) -> "StatesWriter":
        import torch

        self.path.parent.mkdir(parents=True, exist_ok=True)
        starts, size = _places(self._shapes, self._header_bytes)
        self._descriptor = os.open(self._scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.posix_fallocate(self._descriptor, 0, size)
            self._blocks = BlockWriter(self._scratch, self._descriptor, starts)
        except OSError as error:
            os.close(self._descriptor)
            self._scratch.unlink()
            raise ContractError(
                f"{self.path}: no room for the file",
                saw=error,
                expected=f"{size:,} bytes",
                remedy="free the disk that holds it and run the build again: it continues",
            ) from error
        cores = len(os.sched_getaffinity(0)) // torch.get_num_threads()
        self._encoders = min(max(cores, 1), _MOST_ENCODERS)
        self._pool = ThreadPoolExecutor(self._encoders, thread_name_prefix="aerie-encoder")
        offsets = np.cumsum([0, *self._lengths], dtype="<i8")
        self._write("offsets", offsets.view(np.uint8))
        return self

    def add(self, sample: Sample) -> None:
        """Append the next sample. Its memory may be used again afterwards.

        Raises:
            ContractError: it was not announced, or its number of rows, a width or a dtype is not
                what was announced.
            OSError: the disk refused.
        """
        self._check(sample)
        digest = xxhash.xxh3_128()
        for name, rows in self._stored(sample):
            self._write(name, _raw(rows), digest)
        self._write("sample_xxh3", np.frombuffer(digest.digest(), np.uint8))
        self._next += 1

    def _check(self, sample: Sample) -> None:
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

    def _stored(self, sample: Sample) -> "Iterator[tuple[str, torch.Tensor]]":
        """The tensors of a sample as they are stored, in the order of its digest, in pieces."""
        import torch

        yield "token_ids", sample.token_ids
        yield "loss_mask", sample.loss_mask
        scales: dict[str, list[torch.Tensor]] = {}
        for name in ("aux", "last", "top_ids", "top_logprobs", "tail"):
            if name not in self._shapes:
                continue
            rows = getattr(sample, name)
            if f"{name}_scale" not in self._shapes:
                yield name, rows
                continue
            scales[f"{name}_scale"] = []
            for values, scale in self._encoded(rows):
                scales[f"{name}_scale"].append(scale)
                yield name, values
        for name, found in scales.items():
            yield name, torch.cat(found)

    def _encoded(self, states: "torch.Tensor") -> "Iterator[tuple[torch.Tensor, torch.Tensor]]":
        """Pieces of `states` in fp8, with their scales; a few are encoded ahead."""
        pieces = iter(states.split(max(1, _ENCODED_BYTES // states.shape[1])))
        coming = deque(
            self._pool.submit(codecs.encode, piece, self._width)
            for piece in islice(pieces, self._encoders + 1)
        )
        while coming:
            yield coming.popleft().result()
            coming.extend(
                self._pool.submit(codecs.encode, piece, self._width) for piece in islice(pieces, 1)
            )

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
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._blocks.close()
            os.close(self._descriptor)
            self._scratch.unlink(missing_ok=True)

    def _finish(self) -> None:
        if self._next != len(self._lengths):
            raise ContractError(
                f"{self.path}: samples are missing", saw=self._next, expected=len(self._lengths)
            )
        self._blocks.flush()
        digests = {name: state.hexdigest() for name, state in self._hashes.items()}
        os.pwrite(self._descriptor, self._header(digests), 0)
        os.fsync(self._descriptor)
        self._scratch.replace(self.path)
        fsync_directory(self.path.parent)

    def _write(self, name: str, data: Bytes, digest: "xxhash.xxh3_128 | None" = None) -> None:
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = data[start : start + _CHUNK_BYTES]
            self._blocks.append(name, chunk)
            self._hashes[name].update(chunk.data)
            if digest is not None:
                digest.update(chunk.data)

    def _header(self, digests: dict[str, str]) -> bytes:
        entries: dict[str, Any] = {
            "__metadata__": {
                "contract": str(VERSIONS["states"]),
                "key": self._key,
                **{f"xxh3.{name}": digests.get(name, _NO_DIGEST) for name in self._shapes},
            }
        }
        starts, _ = _places(self._shapes)
        for name, (dtype, shape) in self._shapes.items():
            places = [starts[name], starts[name] + _size(dtype, shape)]
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": places}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % _ALIGNMENT)
        return struct.pack("<Q", len(text)) + text


def _raw(tensor: "torch.Tensor") -> Bytes:
    """The bytes of a tensor, uint8 [n]: numpy knows neither bf16 nor fp8."""
    import torch

    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy()


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return DTYPE_BYTES[dtype] * int(np.prod(shape, dtype=np.int64))


def _places(
    shapes: dict[str, tuple[str, tuple[int, ...]]], start: int = 0
) -> tuple[dict[str, int], int]:
    """Where each tensor begins when they lie back to back from `start` on, and where all end."""
    places = {}
    for name, (dtype, shape) in shapes.items():
        places[name] = start
        start += _size(dtype, shape)
    return places, start
