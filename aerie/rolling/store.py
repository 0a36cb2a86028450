"""The states that are on the disk at a time: brought for a window, removed before the next."""

import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from aerie.rolling.cost import Cost
from aerie.rolling.parts import HeldOut, RollingPart
from aerie.rolling.room import removed_first
from aerie.train.schedule import Window

log = logging.getLogger("aerie")


class Capture(Protocol):
    """Captures parts."""

    def ready(self) -> AbstractContextManager[None]:
        """What several captures need at once."""
        ...

    def part(self, part: RollingPart) -> None:
        """Write the states of `part` that are missing, or wrong."""
        ...


class Store:
    """States of `parts` below the folder `states`, and of their samples held out, which stay.

    They take `budget` bytes at most. What they cost is added to `cost`, kept at `cost_path`.
    """

    def __init__(
        self, parts: Sequence[RollingPart], states: Path, budget: int, capture: Capture,
        cost: Cost, cost_path: Path,
    ) -> None:  # fmt: skip
        self._parts = {part.folder: part for part in parts}
        self._states, self._capture = states, capture
        self._room = budget - sum(part.held_out_bytes for part in parts)
        self._cost, self._cost_path = cost, cost_path
        # What this process has seen to be right.
        self._right: set[Path] = set()

    def bring(self, ahead: Sequence[Window]) -> None:
        """Have the states that the first window of `ahead` needs, all windows still to come.

        One that ends an epoch needs all samples held out as well.
        """
        window, upcoming = ahead[0], [each.parts for each in ahead]
        others = self._parts.values() if window.ends_epoch else ()
        for part in others:
            if part.folder not in window.parts and not self._is_kept(part.held_out):
                self._bring([part], upcoming)
        self._bring([self._parts[folder] for folder in sorted(window.parts)], upcoming)

    def _bring(self, parts: Sequence[RollingPart], upcoming: Sequence[Set[Path]]) -> None:
        wanted = {part.folder: part.bytes for part in parts}
        for folder in removed_first(self._held(), wanted, self._room, upcoming):
            log.info("%s: removed, it is captured again when it is needed", folder)
            self._remove(folder)
        missing = [part for part in parts if part.folder not in self._right]
        if missing:
            with self._capture.ready():
                for part in missing:
                    self._capture_one(part)
        for part in parts:
            if not self._is_kept(part.held_out):
                self._keep(part.held_out)

    def _capture_one(self, part: RollingPart) -> None:
        before, start = _stamps(part.folder), time.monotonic()
        self._capture.part(part)
        written = _stamps(part.folder) - before
        self._cost.capture_s += time.monotonic() - start
        if written:
            self._cost.captures[part.name] = self._cost.captures.get(part.name, 0) + 1
            self._cost.bytes_written += sum(size for _, size, _ in written)
        self._right.add(part.folder)
        self._count()

    def _keep(self, held_out: Iterable[HeldOut]) -> None:
        for each in held_out:
            if not each.is_there:
                each.write()
                self._cost.bytes_written += each.file.stat().st_size
            self._right.add(each.file)
        self._count()

    def _is_kept(self, held_out: Iterable[HeldOut]) -> bool:
        for each in held_out:
            if each.file not in self._right:
                if not each.is_there:
                    return False
                self._right.add(each.file)
        return True

    def _count(self) -> None:
        kept = {each.file for part in self._parts.values() for each in part.held_out}
        there = sum(map(_bytes, self._folders())) + sum(
            file.stat().st_size for file in kept if file.exists()
        )
        self._cost.peak_bytes = max(self._cost.peak_bytes, there)
        self._cost.save(self._cost_path)

    def _held(self) -> dict[Path, int]:
        """What takes room: of a part that is captured in part, all that it will take."""
        held = {}
        for folder in self._folders():
            if there := _bytes(folder):
                part = self._parts.get(folder)
                held[folder] = max(there, part.bytes) if part else there
        return held

    def _folders(self) -> Iterator[Path]:
        return (path for path in sorted(self._states.glob("*/*")) if path.is_dir())

    def _remove(self, folder: Path) -> None:
        # What vouches goes first: a kill in between must not leave it vouching for nothing.
        (self._states / "manifest.json").unlink(missing_ok=True)
        (folder / "index.json").unlink(missing_ok=True)
        shutil.rmtree(folder)
        self._right.discard(folder)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def _stamps(folder: Path) -> set[tuple[str, int, int]]:
    """Name, size and time of each states file: what was written is what has changed."""
    facts = ((path, path.stat()) for path in _files(folder) if path.suffix == ".safetensors")
    return {(path.name, fact.st_size, fact.st_mtime_ns) for path, fact in facts}
