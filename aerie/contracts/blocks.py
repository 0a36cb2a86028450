"""Streams of bytes into places of one file, written past the page cache beside the caller's work.

Through the page cache a byte is copied once more and the file system runs after it, which costs
more time than a fast disk takes. With O_DIRECT the disk fetches whole pages by itself; what is left
at the ends of a stream, and file systems that know no O_DIRECT, go through the cache.
"""

import errno
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

# O_DIRECT wants places and memory in units of the disk's sectors, of which pages are multiples.
_PAGE = mmap.PAGESIZE
_BLOCK = max(1 << 24, _PAGE)
# So many are written at a time: the disk has the next one while a thread waits for a core.
_WRITERS = 2
# So many blocks are written or wait for it, besides the one that each stream fills.
_WAITING = 2 * _WRITERS

Bytes = npt.NDArray[np.uint8]


class _Block:
    """Page-aligned memory of `_BLOCK` bytes, of which `start` to `end` are to be written.

    Its first byte belongs at `position` of the file, a multiple of the page.
    """

    def __init__(self) -> None:
        self.bytes: Bytes = np.frombuffer(mmap.mmap(-1, _BLOCK), dtype=np.uint8)
        self.position = self.start = self.end = 0

    def begin(self, position: int) -> None:
        """Make it the block that is filled from `position` of the file on."""
        self.start = self.end = position % _PAGE
        self.position = position - self.start


class BlockWriter:
    """Writes several streams, each from a position of its own, into the file at `path`.

    The file has to be there, of its full size; `descriptor` is open for writing. Streams do not
    overlap. Data that `append` took may change afterwards. At most a block for each stream and
    four more are in memory.
    """

    def __init__(self, path: Path, descriptor: int, starts: dict[str, int]) -> None:
        self._path, self._descriptor = path, descriptor
        self._positions = dict(starts)
        self._blocks: dict[str, _Block] = {}
        self._free: SimpleQueue[_Block] = SimpleQueue()
        for _ in range(len(starts) + _WAITING):
            self._free.put(_Block())
        self._pending: deque[Future[None]] = deque()
        self._threads = ThreadPoolExecutor(_WRITERS, thread_name_prefix="aerie-writer")
        self._direct: int | None = None
        self._refused = False
        # Where there is no O_DIRECT (tmpfs, macOS), the cache does.
        if flag := getattr(os, "O_DIRECT", 0):
            try:
                self._direct = os.open(path, os.O_WRONLY | flag)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise

    def append(self, stream: str, data: Bytes) -> None:
        """Add `data` uint8 [n] to a stream.

        Raises:
            OSError: an earlier block could not be written.
        """
        while len(data):
            block = self._blocks.get(stream)
            if block is None:
                block = self._blocks[stream] = self._free.get()
                block.begin(self._positions[stream])
            taken = data[: _BLOCK - block.end]
            block.bytes[block.end : block.end + len(taken)] = taken
            block.end += len(taken)
            self._positions[stream] += len(taken)
            data = data[len(taken) :]
            if block.end == _BLOCK:
                self._send(stream)

    def flush(self) -> None:
        """Write what is left of every stream. The file is not synced.

        Raises:
            OSError: a block could not be written.
        """
        for stream in list(self._blocks):
            self._send(stream)
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Stop, whatever is still to be written."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._direct is not None:
            os.close(self._direct)

    def _send(self, stream: str) -> None:
        self._pending.append(self._threads.submit(self._write, self._blocks.pop(stream)))
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def _write(self, block: _Block) -> None:
        try:
            first = min(-(-block.start // _PAGE) * _PAGE, block.end)
            last = max(block.end // _PAGE * _PAGE, first)
            self._write_cached(block, block.start, first)
            self._write_pages(block, first, last)
            self._write_cached(block, last, block.end)
        finally:
            self._free.put(block)

    def _write_pages(self, block: _Block, start: int, end: int) -> None:
        while start < end and self._direct is not None and not self._refused:
            try:
                start += os.pwrite(
                    self._direct, block.bytes[start:end].data, block.position + start
                )
            except OSError as error:
                # Some file systems open a file so, and refuse to write it.
                if error.errno != errno.EINVAL:
                    raise
                self._refused = True
        self._write_cached(block, start, end)

    def _write_cached(self, block: _Block, start: int, end: int) -> None:
        while start < end:
            start += os.pwrite(
                self._descriptor, block.bytes[start:end].data, block.position + start
            )
