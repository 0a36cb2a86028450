"""Re-reads every artifact of a work folder against its sidecar, and removes what is damaged."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.contracts import VERSIONS, sidecar, states_index
from aerie.errors import ContractError
from aerie.files import read_json
from aerie.progress import Progress

# These hold their figures themselves and vouch for no other file.
_SELF_CONTAINED = (
    "bench", "lock", "map_study", "mix_study", "overlap", "plan", "rolling", "scaling", "scout",
)  # fmt: skip
_SELECTION = "selection.json"


@dataclass(frozen=True)
class Finding:
    """One damaged file. `sidecar` is what vouches for it: itself, if it is the damaged file."""

    artifact: str
    file: Path
    problem: str
    sidecar: Path


@dataclass(frozen=True)
class Verdict:
    """What was found under a work folder; `leftovers` are scratch files of killed jobs."""

    checked: dict[str, int]
    findings: list[Finding]
    leftovers: list[Path]


def verify(work: Path) -> Verdict:
    """Read every artifact under `work`, all bytes of it.

    Raises:
        ContractError: there is no such folder.
    """
    if not work.is_dir():
        raise ContractError(f"{work} is not a folder", remedy="name the `work` of config.yaml")
    checked: dict[str, int] = {}
    findings: list[Finding] = []
    unreadable: dict[Path, str] = {}
    paths = [path for path in _visible(work, "*.json") if not _is_content(path, work)]
    with Progress("verify", len(paths), "artifacts") as progress:
        for path in paths:
            progress.advance()
            try:
                content = read_json(path)
            except ContractError as error:
                unreadable[path] = error.what.removeprefix(f"{path} ")
                continue
            if path.name == _SELECTION and isinstance(content, dict) and "files" in content:
                findings.extend(_check_files("selection", path, content))
            if isinstance(content, dict) and content.get("artifact") in VERSIONS:
                artifact = str(content["artifact"])
                checked[artifact] = checked.get(artifact, 0) + 1
                findings.extend(_check(path, artifact, content))
    for folder in sorted((work / "prompts").glob("*/")):
        if not folder.name.startswith(".") and not (folder / _SELECTION).exists():
            path = folder / _SELECTION
            findings.append(Finding("selection", path, "missing", path))
    described = {finding.file for finding in findings}
    findings.extend(
        Finding("unknown", path, problem, path)
        for path, problem in unreadable.items()
        if path not in described
    )
    leftovers = sorted(path for path in work.rglob(".*.tmp") if path.is_file())
    return Verdict(dict(sorted(checked.items())), findings, leftovers)


def repair(findings: list[Finding]) -> list[Path]:
    """Remove the damaged files and what vouches for them, so that the next run makes them again.

    Returns what was removed. The whole files beside a damaged one stay: the run that makes the
    sidecar again keeps them. A selection is the exception: its folder appears whole or not at all,
    so it goes whole too, and its prompts come back the same.
    """
    removed = []
    for folder in {finding.file.parent for finding in findings}:
        if (folder / _SELECTION).exists() or any(f.file == folder / _SELECTION for f in findings):
            shutil.rmtree(folder)
            removed.append(folder)
    # What vouches goes first: a kill in between must not leave it vouching for nothing.
    for path in dict.fromkeys([*(f.sidecar for f in findings), *(f.file for f in findings)]):
        if path.exists():
            path.unlink()
            removed.append(path)
    return removed


def _visible(work: Path, pattern: str) -> Iterator[Path]:
    for path in sorted(work.rglob(pattern)):
        hidden = any(part.startswith(".") for part in path.relative_to(work).parts)
        if path.is_file() and not hidden:
            yield path


def _is_content(path: Path, work: Path) -> bool:
    """Whether a file came from the Hub: the sidecar above it vouches for it, whatever it holds."""
    parts = path.relative_to(work).parts
    return len(parts) > 3 and (parts[0], parts[2]) == ("sources", "files")


def _check(path: Path, artifact: str, content: dict[str, Any]) -> Iterator[Finding]:
    if content.get("contract") != VERSIONS[artifact]:
        saw, expected = content.get("contract"), VERSIONS[artifact]
        problem = f"is of contract version {saw}, this Aerie writes {expected}"
        yield Finding(artifact, path, problem, path)
        return
    if artifact not in _SELF_CONTAINED:
        yield from _check_files(artifact, path, content)


def _check_files(artifact: str, path: Path, content: dict[str, Any]) -> Iterator[Finding]:
    damage = states_index.damage if artifact == "states" else sidecar.damage
    try:
        files = [path.parent / name for name in sidecar.described(path, content)]
        problems = damage(path)
    except ContractError as error:
        yield Finding(artifact, path, error.what.removeprefix(f"{path} "), path)
        return
    for file in files:
        prefix = f"{file}: "
        for problem in problems:
            if problem.startswith(prefix):
                yield Finding(artifact, file, problem.removeprefix(prefix), path)
