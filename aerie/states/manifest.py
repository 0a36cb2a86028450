"""The manifest: the states of a whole build as one small file, which the draft depends on."""

from collections.abc import Sequence
from pathlib import Path

from aerie.contracts import sidecar
from aerie.errors import ContractError


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
