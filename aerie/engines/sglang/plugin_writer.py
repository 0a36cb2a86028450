"""From a server's forward pass to the spool: pinned buffers, a bounded queue and one writer thread.

The copy off the device runs beside the next forward pass. A forward pass waits when all buffers
are full, so a slow spool slows the server and never fills memory. Whatever fails ends the server:
states that are lost in silence would be trained without.
"""

import logging
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aerie.engines.sglang.spool import RequestName, Rows, Spool
from aerie.errors import EngineError

if TYPE_CHECKING:
    import torch

log = logging.getLogger("aerie")

_BLOCKS = 16
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class Segment:
    """Rows of one request inside a chunk: `rows` from row `start`, its own from `position`."""

    name: RequestName
    position: int
    start: int
    rows: int

    def clipped(self, first: int, last: int) -> "Segment | None":
        """What of it lies in rows `first` to `last` of the chunk, counted from `first`."""
        start, end = max(self.start, first), min(self.start + self.rows, last)
        if start >= end:
            return None
        moved = self.position + start - self.start
        return Segment(self.name, moved, start - first, end - start)


@dataclass(frozen=True)
class _Job:
    """A block on its way: its memory, how many rows it has, whose, and the copy's event."""

    block: "torch.Tensor"
    rows: int
    segments: list[Segment]
    copied: Any


class RowWriter:
    """Writes the rows of requests into a spool, in the background."""

    def __init__(self, spool: Spool, device: str) -> None:
        import torch

        self._spool = spool
        self._rows_per_block = max(1, _BLOCK_BYTES // spool.row_bytes)
        self._cuda = device == "cuda"
        self._stream: Any = torch.cuda.Stream() if self._cuda else None
        self._received: dict[RequestName, int] = {}
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        size = self._rows_per_block * spool.row_bytes
        for _ in range(_BLOCKS):
            self._free.put(torch.empty(size, dtype=torch.uint8, pin_memory=self._cuda))
        self._written: dict[RequestName, int] = {}
        threading.Thread(target=self._run, name="aerie-spool", daemon=True).start()

    def put(self, rows: Rows, segments: Sequence[Segment]) -> None:
        """Take the rows of one chunk, tensors on the device; waits while all buffers are full.

        Raises:
            EngineError: a request's rows do not follow those that came before, or are too many.
        """
        for segment in segments:
            self._count(segment)
        for first in range(0, len(rows.last), self._rows_per_block):
            last = min(first + self._rows_per_block, len(rows.last))
            inside = [part for s in segments if (part := s.clipped(first, last))]
            if inside:
                block = self._free.get()
                copied = self._copy(rows, first, last, block)
                self._work.put(_Job(block, last - first, inside, copied))

    def _count(self, segment: Segment) -> None:
        name = segment.name
        expected = self._received.pop(name, 0)
        end = segment.position + segment.rows
        if segment.position != expected or end > name.tokens:
            raise EngineError(
                f"rows of request {name} are not those that were due",
                saw=f"rows {segment.position} to {end}",
                expected=f"rows from {expected}, {name.tokens} in all",
                remedy="start the server with --disable-radix-cache, and without speculation",
            )
        if end < name.tokens:
            self._received[name] = end

    def _copy(self, rows: Rows, first: int, last: int, block: "torch.Tensor") -> Any:
        """Copy rows `first` to `last` into `block`; on a GPU, what is returned tells when."""
        import torch

        count = last - first
        starts = (*self._spool.starts(count), self._spool.row_bytes * count)
        tensors = (rows.token_ids, rows.aux, rows.last)
        views = [
            block[start:end].view(tensor.dtype).view(tensor[first:last].shape)
            for tensor, start, end in zip(tensors, starts[:-1], starts[1:], strict=True)
        ]
        if not self._cuda:
            for view, tensor in zip(views, tensors, strict=True):
                view.copy_(tensor[first:last])
            return None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for view, tensor in zip(views, tensors, strict=True):
                view.copy_(tensor[first:last], non_blocking=True)
                # The allocator must not hand this memory out again before it was read.
                tensor.record_stream(self._stream)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return copied

    def _run(self) -> None:
        try:
            while True:
                job = self._work.get()
                if job.copied is not None:
                    job.copied.synchronize()
                data = memoryview(cast(Any, job.block.numpy()))
                for segment in job.segments:
                    self._write(data, job.rows, segment)
                self._free.put(job.block)
        finally:
            # Only a failure gets here.
            self._spool.report_failure(traceback.format_exc())
            traceback.print_exc()
            sys.stderr.flush()
            # As SGLang's own schedulers end their server.
            os.kill(os.getppid(), signal.SIGQUIT)
            os._exit(1)

    def _write(self, data: memoryview, rows: int, segment: Segment) -> None:
        name, spool = segment.name, self._spool
        folder = spool.folder / name.job
        part = folder / f".{name.number}.part"
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT, 0o600)
        except FileNotFoundError:
            log.info("%s: its job has ended, the rows are dropped", name)
            self._written.pop(name, None)
            return
        try:
            widths = (4, 2 * spool.aux_width, 2 * spool.hidden_size)
            sides = zip(spool.starts(rows), spool.starts(name.tokens), widths, strict=True)
            for source, target, width in sides:
                start = source + segment.start * width
                piece = data[start : start + segment.rows * width]
                _write_all(descriptor, piece, target + segment.position * width)
        finally:
            os.close(descriptor)
        written = self._written.pop(name, 0) + segment.rows
        if written == name.tokens:
            _rename(part, folder / str(name.number))
        else:
            self._written[name] = written


def _write_all(descriptor: int, data: memoryview, position: int) -> None:
    # Linux writes 2 GiB at most in one call.
    while data:
        count = os.pwrite(descriptor, data, position)
        data, position = data[count:], position + count


def _rename(part: Path, path: Path) -> None:
    try:
        part.rename(path)
    except FileNotFoundError:
        log.info("%s: its job has ended, the rows are dropped", path)
