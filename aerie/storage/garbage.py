"""What nothing needs any more, and its removal.

Nothing is removed that `aerie verify` would miss, no answer of the target whose copy is not in a
table of responses, nothing outside the work folder, and nothing that changed within the last hour.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from aerie.config import Config
from aerie.contracts.layers import choose_layers
from aerie.contracts.sidecar import read_sidecar
from aerie.errors import ContractError
from aerie.plan.facts import target_revision
from aerie.prompts.select import read_selection
from aerie.storage.answers import only_copies
from aerie.storage.walk import Found, files_of, is_downloaded, resolved, vouchers
from aerie.target import read_target

_QUIET_S = 3600.0


class Kind(StrEnum):
    """What a file was for."""

    STATES = "states"
    SCRATCH = "scratch"
    JOURNALS = "journals"
    CHECKPOINTS = "checkpoints"
    LOGS = "logs"


@dataclass(frozen=True)
class Garbage:
    """A file that can go; `path` is relative to the work folder."""

    path: Path
    kind: Kind
    why: str
    bytes: int


def find_garbage(
    work: Path, config: Config | None = None, now: float | None = None
) -> list[Garbage]:
    """Files below `work` that no target, draft or configuration needs, sorted by path.

    Without `config` every dataset and layer counts as configured. `now` is in seconds since 1970.

    Raises:
        ContractError: there is no such folder.
    """
    return _Search(resolved(work), config, time.time() if now is None else now).run()


def in_order(garbage: list[Garbage]) -> list[Garbage]:
    """What vouches goes first: the manifest, then an index, then the files that it describes."""
    return sorted(garbage, key=lambda entry: (entry.path.suffix != ".json", len(entry.path.parts)))


def remove(work: Path, garbage: list[Garbage]) -> None:
    """Remove files, and folders that are empty then. A kill in between leaves a sound folder.

    Raises:
        ContractError: there is no such folder, or a file is no longer inside it.
    """
    work = resolved(work)
    folders: set[Path] = set()
    for entry in in_order(garbage):
        path = work / entry.path
        if path.parent.resolve() != path.parent or path.is_symlink():
            raise ContractError(
                f"{path} is reached through a link",
                saw=path.parent.resolve(),
                remedy="nothing is removed through links; run the command again",
            )
        path.unlink(missing_ok=True)
        folders.update(parent for parent in path.parents if parent.is_relative_to(work))
    for folder in sorted(folders - {work}, key=lambda folder: -len(folder.parts)):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


class _Search:
    """One look at a work folder."""

    def __init__(self, work: Path, config: Config | None, now: float) -> None:
        self.work, self.config, self.now = work, config, now
        self.files = list(files_of(work))
        self.vouchers = vouchers(work, self.files)
        self._selections: dict[str, set[str] | None] = {}

    def run(self) -> list[Garbage]:
        found: dict[Path, Garbage] = {}
        for kind, rule in (
            (Kind.SCRATCH, self._scratch),
            (Kind.STATES, self._states),
            (Kind.JOURNALS, self._journals),
            (Kind.CHECKPOINTS, self._checkpoints),
            (Kind.LOGS, self._logs),
        ):
            for file, why in rule():
                found.setdefault(file.path, Garbage(file.path, kind, why, file.bytes))
        # Whatever a rule says, a file stays for as long as a sidecar that describes it stays.
        while kept := [path for path in found if self.vouchers.get(path, set()) - set(found)]:
            for path in kept:
                del found[path]
        return [found[path] for path in sorted(found)]

    def _is_quiet(self, *files: Found) -> bool:
        return all(file.changed < self.now - _QUIET_S for file in files)

    def _scratch(self) -> Iterator[tuple[Found, str]]:
        groups: dict[Path, list[Found]] = {}
        for file in self.files:
            place = _scratch_place(file.path)
            if place and not is_downloaded(file.path):
                groups.setdefault(place, []).append(file)
        for group in groups.values():
            if self._is_quiet(*group):
                yield from ((file, "scratch of a job that was killed") for file in group)

    def _states(self) -> Iterator[tuple[Found, str]]:
        manifest = self._manifest()
        if manifest is None:
            return
        parts: dict[tuple[str, str], list[Found]] = {}
        for file in self.files:
            if len(file.path.parts) == 4 and file.path.parts[0] == "states":
                parts.setdefault((file.path.parts[1], file.path.parts[2]), []).append(file)
        stale = set()
        for (dataset, part), files in parts.items():
            index = _index(self.work / "states" / dataset / part)
            why = self._why_stale(dataset, part, index)
            if why and self._is_quiet(*files):
                stale.add(Path("states", dataset, part, "index.json"))
                yield from ((file, why) for file in files)
            elif index is not None:
                yield from (
                    (file, "states that the part's index does not name")
                    for file in files
                    if file.path.suffix == ".safetensors"
                    and file.path.name not in index["files"]
                    and self._is_quiet(file)
                )
        if stale & manifest:
            path = Path("states", "manifest.json")
            yield from (
                (file, "the manifest names states that are stale")
                for file in self.files
                if file.path == path
            )

    def _manifest(self) -> set[Path] | None:
        """The indexes that the manifest names; None where it cannot be read."""
        path = self.work / "states" / "manifest.json"
        if not path.exists():
            return set()
        try:
            return {Path("states", name) for name in read_sidecar(path, "manifest")["files"]}
        except (ContractError, KeyError, TypeError):
            # For all that is known, it names everything.
            return None

    def _why_stale(self, dataset: str, part: str, index: dict[str, Any] | None) -> str | None:
        if why := self._why_gone(dataset, part):
            return f"states of {why}"
        if index is None:
            return None
        revision, made = self._revision(), index["provenance"]
        if revision is not None and made.get("target") != revision:
            return "states of another target"
        if self.config and revision is not None:
            layers = choose_layers(
                read_target(self.work / "target" / "target.json").layers, self.config.states.layers
            )
            wanted = {"layers": layers.as_dict(), "teacher": None, **self.config.states.stored()}
            if wanted != {name: made.get(name) for name in wanted}:
                return "states of other layers or another codec"
        if self._rolled():
            return "states of drafts that are there, captured again when they are needed"
        return None

    def _rolled(self) -> bool:
        """Whether states come and go, and every draft has had them."""
        if self.config is None or self.config.rolling is None:
            return False
        drafts = self.work / "draft"
        return all((drafts / run / "rolling.json").exists() for run in self.config.drafts)

    def _revision(self) -> str | None:
        try:
            return target_revision(self.work)
        except ContractError:
            return None

    def _why_gone(self, dataset: str, part: str) -> str | None:
        """Why the build no longer has a part; None where it has it or no one knows."""
        if self.config and dataset not in self.config.datasets:
            return "a dataset that the configuration does not name"
        if dataset not in self._selections:
            folder = self.work / "prompts" / dataset
            try:
                self._selections[dataset] = set(read_selection(folder))
            except ContractError:
                # Being made again, perhaps.
                self._selections[dataset] = None
        selected = self._selections[dataset]
        return None if selected is None or part in selected else "a part that is not selected"

    def _journals(self) -> Iterator[tuple[Found, str]]:
        for file in self.files:
            parts = file.path.parts
            if len(parts) != 4 or parts[:2] != ("journal", "responses"):
                continue
            if file.path.suffix != ".jsonl" or not self._is_quiet(file):
                continue
            why = self._why_gone(parts[2], file.path.stem)
            if why and not only_copies(self.work / file.path, self.work / "responses" / parts[2]):
                yield file, f"journal of {why}, answers are in responses"

    def _checkpoints(self) -> Iterator[tuple[Found, str]]:
        done = {}
        for file in self.files:
            match file.path.parts:
                case ("draft", run, "draft.json"):
                    done[Path("journal", "draft", run)] = file
                case ("draft", run, "rolling.json"):
                    done[Path("journal", "rolling", run)] = file
                case ("scaling", "points", name):
                    done[Path("journal", "scaling", Path(name).stem)] = file
        for file in self.files:
            result = done.get(Path(*file.path.parts[:3]))
            # A checkpoint that is younger is of a training that goes on.
            if result and file.changed < result.changed and self._is_quiet(file, result):
                yield file, "checkpoint of a training that is done"

    def _logs(self) -> Iterator[tuple[Found, str]]:
        for file in self.files:
            top, name = file.path.parts[0], file.path.name
            is_server = top in ("states", "journal") and name.endswith("server.log")
            if (top == "logs" or is_server) and self._is_quiet(file):
                yield file, "log of a job that ended"


def _scratch_place(path: Path) -> Path | None:
    """The scratch file or folder that a file is or lies in: `.<name>.tmp`, `.<dataset>.old`."""
    for depth, name in enumerate(path.parts, start=1):
        is_old = name.endswith(".old") and path.parts[0] == "prompts" and depth == 2
        if name.startswith(".") and (name.endswith(".tmp") or is_old):
            return Path(*path.parts[:depth])
    return None


def _index(folder: Path) -> dict[str, Any] | None:
    """The index of a part; None where there is none that makes sense."""
    try:
        index = read_sidecar(folder / "index.json", "states")
    except ContractError:
        return None
    whole = all(isinstance(index.get(name), dict) for name in ("files", "provenance"))
    return index if whole else None
