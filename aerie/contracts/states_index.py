"""`index.json` of a part of states: its files, written last, and what is wrong with them."""

from pathlib import Path
from typing import Any

from aerie.contracts import VERSIONS
from aerie.contracts.layers import Layers
from aerie.contracts.sidecar import described
from aerie.contracts.states import StatesFile
from aerie.errors import ContractError
from aerie.files import read_json, write_sealed


def write_index(
    path: Path,
    files: dict[str, list[str]],
    layers: Layers,
    counts: dict[str, Any],
    provenance: dict[str, Any],
) -> None:
    """Write a part's `index.json`: `files` maps each file name to the ids of its samples."""
    entries = {}
    for name, ids in files.items():
        metadata = StatesFile(path.parent / name).metadata
        entries[name] = {
            "bytes": (path.parent / name).stat().st_size,
            "key": metadata.get("key", ""),
            "samples": ids,
            "xxh3": {k.removeprefix("xxh3."): v for k, v in metadata.items() if "xxh3." in k},
        }
    index = {
        "artifact": "states",
        "contract": VERSIONS["states"],
        "files": entries,
        "layers": layers.as_dict(),
        "counts": counts,
        "provenance": provenance,
    }
    write_sealed(path, index)


def damage(path: Path) -> list[str]:
    """What is wrong with the files that the index at `path` describes; empty if nothing is.

    Raises:
        ContractError: it does not describe them.
    """
    problems = []
    for name, entry in described(path, read_json(path)).items():
        file = path.parent / name
        try:
            states = StatesFile(file)
        except ContractError as error:
            problems.append(f"{file}: {error.saw or error.what}")
            continue
        if states.metadata.get("key") != entry.get("key"):
            problems.append(f"{file}: holds other samples than the index says")
        elif damaged := states.damaged_tensors():
            problems.append(f"{file}: {', '.join(damaged)} changed since it was written")
    return problems
