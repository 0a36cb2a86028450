"""Blocks past the page cache: every byte where it belongs, with O_DIRECT and without."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.contracts import blocks
from aerie.contracts.blocks import BlockWriter, Bytes

PAGE = os.sysconf("SC_PAGESIZE")


def random_bytes(count: int, seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def write(path: Path, streams: dict[str, Bytes], pieces: int) -> bytes:
    """Streams back to back, each in pieces, in turn."""
    starts, size = {}, 0
    for name, data in streams.items():
        starts[name], size = size, size + len(data)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.posix_fallocate(descriptor, 0, max(size, 1))
    writer = BlockWriter(path, descriptor, starts)
    try:
        for piece in range(pieces):
            for name, data in streams.items():
                taken = np.array_split(data, pieces)[piece].copy()
                writer.append(name, taken)
                # The caller may use its memory again.
                taken[:] = 0
        writer.flush()
    finally:
        writer.close()
        os.close(descriptor)
    return path.read_bytes()[:size]


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 6 * PAGE), min_size=1, max_size=5),
    pieces=st.integers(1, 7),
    block=st.sampled_from([PAGE, 2 * PAGE]),
)
def test_every_byte_is_where_it_belongs(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], pieces: int, block: int
) -> None:
    streams = {str(n): random_bytes(length, n) for n, length in enumerate(lengths)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK", block)
        found = write(tmp_path_factory.mktemp("blocks") / "file", streams, pieces)
    assert found == b"".join(data.tobytes() for data in streams.values())


def refuse(kind: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the second write of whole pages fail; gives the descriptors that were refused."""
    real = os.pwrite
    direct: list[int] = []
    refused: list[int] = []

    def pwrite(descriptor: int, data: memoryview, position: int) -> int:
        if position % PAGE == 0 and len(data) % PAGE == 0 and not refused:
            direct.append(descriptor)
            if len(direct) == 2:
                refused.append(descriptor)
                raise OSError(kind, os.strerror(kind))
        return real(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return refused


def test_a_file_system_that_refuses_pages_has_them_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", PAGE)
    refused = refuse(errno.EINVAL, monkeypatch)
    data = random_bytes(5 * PAGE, 0)
    assert write(tmp_path / "file", {"a": data}, 3) == data.tobytes()
    assert refused


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", PAGE)
    refuse(errno.EIO, monkeypatch)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write(tmp_path / "file", {"a": random_bytes(9 * PAGE, 0)}, 9)
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_is_written_without_o_direct(small_disk: Path) -> None:
    """A tmpfs, which had no O_DIRECT for long."""
    data = random_bytes(100 * PAGE + 17, 0)
    assert write(small_disk / "file", {"a": data[:5], "b": data[5:]}, 2) == data.tobytes()
