"""The files of a work folder, and what each is for."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aerie.contracts import VERSIONS
from aerie.errors import ContractError
from aerie.files import read_json


@dataclass(frozen=True)
class Found:
    """One file: its path relative to the work folder, bytes, and seconds since 1970 of a change."""

    path: Path
    bytes: int
    changed: float


def files_of(work: Path) -> Iterator[Found]:
    """Every file below `work`, sorted by path. Symbolic links are neither followed nor files."""
    pending = [Path()]
    while pending:
        folder = pending.pop()
        with os.scandir(work / folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        pending += [folder / e.name for e in reversed(found) if e.is_dir(follow_symlinks=False)]
        for entry in found:
            if entry.is_file(follow_symlinks=False):
                facts = entry.stat(follow_symlinks=False)
                yield Found(folder / entry.name, facts.st_size, facts.st_mtime)


def resolved(work: Path) -> Path:
    """The folder itself, where `work` may be a link to it.

    Raises:
        ContractError: there is no such folder.
    """
    if not work.is_dir():
        raise ContractError(f"{work} is not a folder", remedy="name the `work` of config.yaml")
    return work.resolve()


def is_downloaded(path: Path) -> bool:
    """Whether a file came from the Hub, whatever it is called: `sources/<dataset>/files/...`."""
    return len(path.parts) > 3 and (path.parts[0], path.parts[2]) == ("sources", "files")


def dataset_of(path: Path) -> str | None:
    """The dataset that a file is of; None where it is of all of them."""
    parts = path.parts
    if parts[:2] == ("journal", "responses"):
        parts = parts[1:]
    per_dataset = ("sources", "candidates", "prompts", "responses", "states")
    return parts[1] if len(parts) > 2 and parts[0] in per_dataset else None


def vouchers(work: Path, files: list[Found]) -> dict[Path, set[Path]]:
    """For each file that `aerie verify` would miss, the sidecars that describe it."""
    found: dict[Path, set[Path]] = {}
    for file in files:
        if file.path.suffix != ".json" or is_downloaded(file.path):
            continue
        try:
            content = read_json(work / file.path)
        except ContractError:
            continue
        if not isinstance(content, dict) or content.get("artifact") not in VERSIONS:
            continue
        names = content.get("files")
        for name in names if isinstance(names, dict) else ():
            found.setdefault(file.path.parent / name, set()).add(file.path)
    return found
