"""The lock: one file with every input of a build pinned. It holds no time, host or path."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aerie.contracts import VERSIONS
from aerie.contracts.sidecar import read_sidecar
from aerie.errors import ConfigError, ContractError
from aerie.files import digest_json, read_json, write_json

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;#*]+)$")


def write_lock(
    target: Path,
    selections: Sequence[Path],
    candidates: Sequence[Path],
    requirements: Sequence[Path],
    out: Path,
) -> None:
    """Write the lock of a build to `out`.

    `target` is target.json, `selections` are the files selection.json (their licence.json lies
    beside them), `candidates` the files candidates.json, which know the digests of the sources and,
    of a dataset from the Hub, its commit.

    Raises:
        ContractError: an artifact is missing or damaged.
        ConfigError: a requirement is not pinned.
    """
    sources = dict(map(_sources, candidates))
    datasets = dict(_dataset(path, sources) for path in selections)
    write_json(
        out,
        {
            "artifact": "lock",
            "contract": VERSIONS["lock"],
            "target": _target(target),
            "datasets": datasets,
            "contracts": VERSIONS,
            "requirements": {path.name: read_pins(path) for path in requirements},
        },
    )


def read_pins(path: Path) -> dict[str, str]:
    """The packages that a requirements file pins, by normalised name, with their versions.

    Raises:
        ConfigError: the file is missing, or a line names a package without an exact version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", saw=error) from error
    pins: dict[str, str] = {}
    for number, requirement in _requirements(text):
        found = _PIN.match(requirement)
        if not found:
            raise ConfigError(
                f"{path}, line {number}, does not pin a version",
                saw=requirement,
                expected="name==version",
                remedy="pin it: a lock must name exactly what was used",
            )
        pins[re.sub(r"[-_.]+", "-", found[1]).lower()] = found[2]
    return dict(sorted(pins.items()))


def _requirements(text: str) -> Iterator[tuple[int, str]]:
    """Line number and requirement, without comments, markers, hashes and options of pip."""
    joined = re.sub(r"\\\n", " ", text)
    for number, line in enumerate(joined.splitlines(), start=1):
        bare = re.sub(r"(^|\s)#.*", "", line)
        bare = re.split(r"\s--", bare)[0].split(";")[0].strip()
        if bare and not bare.startswith("-"):
            yield number, bare


def _target(path: Path) -> dict[str, Any]:
    provenance = read_sidecar(path, "target")["provenance"]
    return {key: provenance.get(key) for key in ("name", "revision", "dtype", "licence", "source")}


def _sources(path: Path) -> tuple[str, dict[str, Any]]:
    provenance = read_sidecar(path, "candidates")["provenance"]
    origin = provenance.get("origin") or {}
    pinned = {key: origin.get(key) for key in ("repo", "revision", "commit")}
    return provenance["dataset"], {**pinned, "files": provenance["sources"]}


def _dataset(path: Path, sources: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    licence = read_json(path.with_name("licence.json"))
    try:
        selection = read_json(path)
        name = selection["dataset"]
        source = sources.get(name, {})
        files = source.get("files")
        return name, {
            **{key: source.get(key) for key in ("repo", "revision", "commit")},
            "id": licence["id"],
            "licence": licence["licence"],
            "take": selection.get("take"),
            "digest": None if files is None else digest_json(files),
            "files": files,
        }
    except (TypeError, KeyError) as error:
        raise ContractError(
            f"{path} or the licence.json beside it lacks a field",
            saw=f"no {error}",
            remedy=f"remove {path.parent} and run the build again",
        ) from error
