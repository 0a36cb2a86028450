"""The sidecar: the small JSON beside an artifact that stands for it in the workflow.

It holds digests, counts, the contract version and where the content came from. It holds no time,
host or path, so that an artifact rebuilt with the same bytes wakes nothing downstream.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aerie.contracts import VERSIONS
from aerie.errors import ContractError
from aerie.files import digest_file, read_json, write_json


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
        "files": {
            str(file.relative_to(path.parent)): {
                "xxh3": digest_file(file),
                "bytes": file.stat().st_size,
            }
            for file in files
        },
        "counts": counts,
        "provenance": provenance,
    }
    write_json(path, sidecar)
    return sidecar


def read_sidecar(path: Path, artifact: str) -> dict[str, Any]:
    """Read a sidecar.

    Raises:
        ContractError: it is missing, of another artifact or of another contract version.
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
    return dict(sidecar)


def damage(path: Path) -> list[str]:
    """What is wrong with the files that the sidecar at `path` describes; empty if nothing is."""
    sidecar = read_json(path)
    problems = []
    for name, expected in sidecar["files"].items():
        file = path.parent / name
        if not file.exists():
            problems.append(f"{file}: missing")
        elif (size := file.stat().st_size) != expected["bytes"]:
            problems.append(f"{file}: {size:,} bytes, expected {expected['bytes']:,}")
        elif digest_file(file) != expected["xxh3"]:
            problems.append(f"{file}: the content changed since it was written")
    return problems
