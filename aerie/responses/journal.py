"""The journal: every answer that was paid for, kept outside the outputs that a rerun deletes.

Append-only JSON lines keyed by request digest, each with a digest of its own. Whatever happens to
the process or the disk, an answer is in the journal whole or not at all.
"""

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from aerie.engines.base import Answer
from aerie.files import canonical_json, digest_json, fsync_directory

log = logging.getLogger("aerie")


class Journal:
    """Answers by request digest; use as a context manager. One process writes at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Answer] = {}

    def __enter__(self) -> "Journal":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        fsync_directory(self.path.parent)
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            # What a kill cut off must not be glued to the next line.
            os.ftruncate(self._descriptor, whole)
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            self._read(number, line)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def add(self, answers: Iterable[tuple[str, Answer]]) -> None:
        """Append a batch of (digest, answer) and sync it; a digest's first answer stays."""
        lines = []
        for digest, answer in answers:
            if digest not in self.answers:
                self.answers[digest] = answer
                lines.append(_line(digest, answer) + "\n")
        data = memoryview("".join(lines).encode())
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)

    def _read(self, number: int, line: bytes) -> None:
        try:
            digest, answer = read_line(line)
            self.answers.setdefault(digest, answer)
        except ValueError as error:
            log.warning("%s: line %d is damaged and asked again: %s", self.path, number, error)


def _line(digest: str, answer: Answer) -> str:
    entry = {"digest": digest, **vars(answer)}
    return canonical_json({**entry, "xxh3": digest_json(entry)})


def read_line(line: bytes) -> tuple[str, Answer]:
    """The digest of a request, and the answer to it. Lines of older journals have no `xxh3`.

    Raises:
        ValueError: the line is damaged.
    """
    try:
        entry = json.loads(line)
        expected = entry.pop("xxh3", None)
        if expected is not None and digest_json(entry) != expected:
            raise ValueError("it changed since it was written")
        digest, answer = entry.pop("digest"), Answer(**entry)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no answer: {error}") from error
    ids, finish = answer.output_ids, answer.finish_reason
    if not isinstance(ids, list) or not all(type(id) is int for id in ids):
        raise ValueError("output_ids are no ids")
    if not isinstance(digest, str) or not isinstance(finish, str):
        raise ValueError("a digest or a finish_reason is no text")
    return digest, answer
