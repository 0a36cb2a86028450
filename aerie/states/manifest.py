"""The manifest: the states of a whole build as one small file, which the draft depends on."""

from collections.abc import Sequence
from pathlib import Path

from aerie.contracts import sidecar
from aerie.errors import ContractError, DataError


def write_manifest(indexes: Sequence[Path], out: Path) -> None:
    """Write the sidecar of all `<dataset>/<part>/index.json`, which lie below its folder.

    Raises:
        ContractError: an index is missing or damaged.
    """
    counts = [sidecar.read_sidecar(index, "states")["counts"] for index in indexes]
    total = {name: sum(each[name] for each in counts) for name in ("samples", "tokens")}
    sidecar.write_sidecar(out, "manifest", indexes, {"parts": len(indexes), **total}, {})


def read_manifest(path: Path) -> list[Path]:
    """The indexes that the manifest names, in its order.

    Raises:
        ContractError: an index is not the one that the manifest was written for.
    """
    if problems := sidecar.damage(path):
        raise ContractError(
            f"{path} does not fit the states beside it",
            saw="; ".join(problems),
            remedy="run the build again: it writes the manifest anew",
        )
    return [path.parent / name for name in sidecar.read_sidecar(path, "manifest")["files"]]


def find_indexes(path: Path) -> list[Path]:
    """The indexes that a person means: of an index.json, of a manifest, or all below a folder.

    Raises:
        ContractError: an index is not the one that the manifest was written for.
        DataError: there are none.
    """
    if path.is_dir():
        found = sorted(
            index for depth in ("", "*/", "*/*/") for index in path.glob(f"{depth}index.json")
        )
    else:
        found = read_manifest(path) if path.name == "manifest.json" else [path]
    if not found:
        raise DataError(
            f"{path} holds no states",
            expected="index.json of a part, manifest.json, or a folder above them",
        )
    return found
