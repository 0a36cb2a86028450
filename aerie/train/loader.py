"""Packs ahead of the trainer: read by threads, copied to the device beside its work.

A thread reads the samples of one step straight into pinned memory, which is used again, and checks
their digests on the way, all without Python's lock. The copy to the GPU has a stream of its own. At
most `AHEAD` steps are in memory besides the one that is trained on.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from aerie.train.data import Located, read_pack
from aerie.train.packing import Pack

AHEAD = 2


@dataclass(frozen=True)
class _Read:
    """Packs on the device, and the event that they are there, None on the CPU."""

    packs: list[Pack]
    there: "torch.cuda.Event | None"


class Loader:
    """Yields the packs of each step of `plan`: lists of samples, padded to `budget` rows.

    `waited` is the time, in seconds, that the reader of this iterator stood still for data.
    """

    def __init__(
        self, plan: Sequence[Sequence[Sequence[Located]]], budget: int, device: torch.device
    ) -> None:
        self._plan, self._budget, self._device = plan, budget, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.waited = 0.0

    def __iter__(self) -> Iterator[list[Pack]]:
        coming: deque[Future[_Read]] = deque()
        pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="aerie-loader")
        try:
            for step in self._plan:
                coming.append(pool.submit(self._read, step))
                if len(coming) > AHEAD:
                    yield self._wait(coming.popleft())
            while coming:
                yield self._wait(coming.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _wait(self, future: "Future[_Read]") -> list[Pack]:
        start = time.perf_counter()
        read = future.result()
        self.waited += time.perf_counter() - start
        if read.there is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(read.there)
            for pack in read.packs:
                for tensor in pack.tensors():
                    # The memory was taken on the other stream, and is given back after this one.
                    tensor.record_stream(here)
        return read.packs

    def _read(self, step: Sequence[Sequence[Located]]) -> _Read:
        packs = [read_pack(samples, self._budget, self._stream is not None) for samples in step]
        if self._stream is None:
            return _Read([pack.to(self._device) for pack in packs], None)
        with torch.cuda.stream(self._stream):
            moved = [pack.to(self._device) for pack in packs]
            there = torch.cuda.Event()
            there.record()
        return _Read(moved, there)
