"""The sidecar: the small JSON beside an artifact that stands for it in the workflow.

It holds digests, counts, the contract version and where the content came from. It holds no time,
host or path, so that an artifact rebuilt with the same bytes wakes nothing downstream.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from aerie.contracts import VERSIONS
from aerie.errors import ContractError
from aerie.files import digest_file, is_inside, read_json, write_sealed


def write_sidecar(
    path: Path,
    artifact: str,
    files: Iterable[Path],
    counts: dict[str, Any],
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Write the sidecar of `files`, which must lie in the sidecar's folder, and return it."""
    sidecar = {
        "artifact": artifact,
        "contract": VERSIONS[artifact],
        "files": vouched(path.parent, files),
        "counts": counts,
        "provenance": provenance,
    }
    write_sealed(path, sidecar)
    return sidecar


def vouched(folder: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Digest and bytes of each of `files`, by its name below `folder`."""
    return {
        str(file.relative_to(folder)): {"xxh3": digest_file(file), "bytes": file.stat().st_size}
        for file in files
    }


def read_sidecar(path: Path, artifact: str) -> dict[str, Any]:
    """Read a sidecar.

    Raises:
        ContractError: it is missing, of another artifact or of another contract version, or it
            does not describe its files.
    """
    sidecar = read_json(path)
    expected = {"artifact": artifact, "contract": VERSIONS[artifact]}
    saw = {key: sidecar.get(key) for key in expected} if isinstance(sidecar, dict) else sidecar
    if saw != expected:
        raise ContractError(
            f"{path} is not a sidecar of {artifact}",
            saw=saw,
            expected=expected,
            remedy=f"remove {path} and run the build again",
        )
    # A plan and the like vouch for themselves alone.
    if "files" in sidecar:
        described(path, sidecar)
    return dict(sidecar)


def read_whole(
    path: Path, artifact: str, names: Collection[str] | None = None, up_to: int | None = None
) -> dict[str, Any]:
    """Read a sidecar whose files are about to be read, and check those against it, or `names` of
    them. Of files of more than `up_to` bytes the size alone is checked.

    Raises:
        ContractError: as `read_sidecar`, or a file is not the one that the sidecar was written for.
    """
    sidecar = read_sidecar(path, artifact)
    if problems := damage(path, names, up_to):
        raise ContractError(
            f"{path} does not fit the files beside it",
            saw="; ".join(problems),
            remedy="run `make verify ARGS=--repair`, then the build: only that is made again",
        )
    return sidecar


def described(path: Path, content: Any) -> dict[str, dict[str, Any]]:
    """What `content`, read from the sidecar or index at `path`, says of each of its files, by name.

    Raises:
        ContractError: it says nothing, or names a file outside of its folder, which whoever goes by
            it would read, or remove.
    """
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not all(isinstance(one, dict) for one in files.values()):
        raise ContractError(
            f"{path} does not describe its files", remedy=f"remove {path} and run the build again"
        )
    if outside := [name for name in files if not is_inside(name)]:
        raise ContractError(
            f"{path} names files outside of its folder",
            saw=outside[0],
            remedy=f"nobody but Aerie should write {path}; remove it and run the build again",
        )
    return files


def damage(path: Path, names: Collection[str] | None = None, up_to: int | None = None) -> list[str]:
    """What is wrong with the files that the sidecar at `path` describes; empty if nothing is.

    `names` and `up_to` are those of `read_whole`.

    Raises:
        ContractError: it does not describe them.
    """
    problems = []
    for name, expected in described(path, read_json(path)).items():
        if names is not None and name not in names:
            continue
        file = path.parent / name
        if not file.exists():
            problems.append(f"{file}: missing")
        elif not file.is_file():
            problems.append(f"{file}: not a file")
        elif (size := file.stat().st_size) != expected.get("bytes"):
            problems.append(f"{file}: {size:,} bytes, expected {expected.get('bytes')}")
        elif (up_to is None or size <= up_to) and digest_file(file) != expected.get("xxh3"):
            problems.append(f"{file}: the content changed since it was written")
    return problems
