"""The lock: one file with every input of a build pinned. It holds no time, host or path."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aerie.config import Config
from aerie.contracts import VERSIONS
from aerie.contracts.sidecar import read_sidecar
from aerie.errors import ContractError
from aerie.files import digest_json, read_json, write_sealed
from aerie.pins import read_pins

UNKNOWN_COMMIT = "unknown"
# What decides a build's content, beside the datasets, which the lock names one by one.
_SECTIONS = (
    "seed", "engine", "prompts", "licences", "responses", "vocab", "states", "drafts", "bench",
)  # fmt: skip


def write_lock(
    target: Path,
    selections: Sequence[Path],
    candidates: Sequence[Path],
    requirements: Sequence[Path],
    out: Path,
    *,
    images: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    commit: str = UNKNOWN_COMMIT,
) -> None:
    """Write the lock of a build to `out`; the arguments are those of `lock`.

    Raises:
        ContractError: an artifact is missing or damaged.
        ConfigError: a requirement is not pinned.
    """
    content = lock(
        target,
        selections,
        candidates,
        requirements,
        images=images,
        settings=settings,
        commit=commit,
    )
    write_sealed(out, content)


def lock(
    target: Path,
    selections: Sequence[Path],
    candidates: Sequence[Path],
    requirements: Sequence[Path],
    *,
    images: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    commit: str = UNKNOWN_COMMIT,
) -> dict[str, Any]:
    """What a build is made from.

    `target` is target.json, `selections` are the files selection.json (their licence.json lies
    beside them), `candidates` the files candidates.json, which know the digests of the sources and,
    of a dataset from the Hub, its commit. `images` gives the digest of each image and each base,
    `settings` is what `digest_settings` returns, `commit` what `git_commit` returns.

    Raises:
        ContractError: an artifact is missing or damaged.
        ConfigError: a requirement is not pinned.
    """
    sources = dict(map(_sources, candidates))
    return {
        "artifact": "lock",
        "contract": VERSIONS["lock"],
        "target": _target(target),
        "datasets": dict(_dataset(path, sources) for path in selections),
        "settings": dict(settings or {}),
        "contracts": VERSIONS,
        "requirements": {path.name: read_pins(path) for path in requirements},
        "images": dict(images or {}),
        "commit": commit,
    }


def digest_settings(config: Config) -> dict[str, str]:
    """A digest of each section of the configuration that decides what a build makes."""
    content = config.model_dump(mode="json")
    return {name: digest_json(content[name]) for name in _SECTIONS}


def git_commit(root: Path) -> str:
    """The commit of a checkout, with `+changes` where tracked files differ from it."""
    found = _git(root, "rev-parse", "HEAD")
    if found is None:
        return UNKNOWN_COMMIT
    return found + ("+changes" if _git(root, "status", "--porcelain", "-uno") else "")


def differences(locked: Any, now: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """What two locks disagree about: the place, and what each says; None is nothing."""
    if isinstance(locked, dict) and isinstance(now, dict):
        for key in sorted({*locked, *now}):
            place = f"{where}.{key}" if where else key
            yield from differences(locked.get(key), now.get(key), place)
    elif locked != now:
        yield where, locked, now


def read_lock(path: Path) -> dict[str, Any]:
    """Read a lock.

    Raises:
        ContractError: it is missing, or is no lock of this contract version.
    """
    content = read_json(path)
    expected = {"artifact": "lock", "contract": VERSIONS["lock"]}
    saw = {key: content.get(key) for key in expected} if isinstance(content, dict) else content
    if saw != expected:
        raise ContractError(f"{path} is not a lock", saw=saw, expected=expected)
    return dict(content)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _target(path: Path) -> dict[str, Any]:
    content = read_sidecar(path, "target")
    provenance, files = content["provenance"], content.get("files", {})
    digests = {name: entry["xxh3"] for name, entry in sorted(files.items())}
    template = [name for name in digests if name.startswith("chat_template")]
    tokenizer = [name for name in digests if "token" in name and name not in template]
    return {
        **{key: provenance.get(key) for key in ("name", "revision", "dtype", "licence", "source")},
        "tokenizer": {name: digests[name] for name in tokenizer},
        "template": {name: digests[name] for name in template},
    }


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
