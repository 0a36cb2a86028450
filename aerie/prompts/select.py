"""Selection: the parts of a dataset that meet its take, each the same whatever else is taken.

A part is a fixed slice of the order of all candidates. A candidate that an earlier dataset has too,
exactly or nearly, is dropped from its own part and moves no other; whether the earlier dataset
selects it has no say, so that no take changes another dataset.

The first prompts of the order may be held out, to measure on: they are never selected, whatever the
take, and no later dataset has them either, since they are candidates of this one.
"""

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from aerie.command import log
from aerie.contracts.candidates import read_index
from aerie.contracts.prompts import (
    REJECTS,
    Prompt,
    Reason,
    part_name,
    read_prompt_slice,
    write_prompts,
)
from aerie.contracts.sidecar import read_whole, vouched, write_sidecar
from aerie.contracts.tables import write_tables
from aerie.errors import ContractError, GateError
from aerie.files import fsync_directory, read_json, write_sealed
from aerie.prompts.duplicates import Repeat, repeats
from aerie.prompts.text import head

# Looked at beyond what is wanted, so that one pass over the earlier datasets is mostly enough.
_MARGIN = 1.1
HELD_OUT = "heldout.jsonl"


@dataclass(frozen=True)
class Settings:
    """How much is taken, in parts of what size, and the share that the target thinks about.

    `held_out` prompts are kept for measuring.
    """

    take: int
    part_size: int
    thinking_share: float = 0.0
    seed: int = 0
    held_out: int = 0


@dataclass(frozen=True)
class Part:
    """A slice of the order of candidates without those that earlier datasets have.

    `held_out` are those of it that are measured on.
    """

    number: int
    prompts: list[Prompt]
    dropped: list[tuple[Prompt, Repeat]]
    held_out: list[Prompt]

    @property
    def name(self) -> str:
        return part_name(self.number)


def select(settings: Settings, candidates: Path, earlier: list[Path], out: Path) -> None:
    """Write the selection of one dataset as the folder `out`, whole or not at all.

    `candidates` is the dataset's `candidates.json`, `earlier` those of the datasets that go before
    it, in priority order. `out` gets `NNN.parquet` and `NNN.json` for each part, `rejects.parquet`,
    `licence.json` and `selection.json`; and `heldout.jsonl`, a suite, if prompts are held out.

    Raises:
        ContractError: candidates are missing or damaged.
        GateError: no candidate is left.
    """
    sidecar = read_whole(candidates, "candidates")
    name, count = sidecar["provenance"]["dataset"], sidecar["counts"]["candidates"]
    parts = take_parts(settings, candidates, count, earlier)
    rows = sum(len(part.prompts) for part in parts)
    dropped = [entry for part in parts for entry in part.dropped]
    held_out = [prompt for part in parts for prompt in part.held_out]
    if not rows:
        raise GateError(
            "prompts",
            f"no prompt of {name} is left",
            saw=f"{count:,} candidates, {len(dropped):,} of them in earlier datasets, "
            f"{len(held_out):,} held out",
            remedy=f"remove {name} from the mix or move it before the datasets that repeat it",
        )
    if rows < settings.take:
        wanted = f"{settings.take:,}"
        log.warning("%s: %s prompts are wanted and only %s exist", name, wanted, f"{rows:,}")
    with replacing_folder(out) as scratch:
        for part in parts:
            if part.prompts:
                _write_part(scratch, part, sidecar["provenance"])
        lost = pq.read_table(candidates.with_name("rejects.parquet"), schema=REJECTS)
        write_tables(scratch / "rejects.parquet", [lost, _rejects(dropped)], REJECTS)
        write_sealed(scratch / "licence.json", _licence(sidecar["provenance"], rows))
        rejected = lost.num_rows + len(dropped)
        # Parts vouch for their own tables.
        files = [*sorted(scratch.glob("*.json")), scratch / "rejects.parquet"]
        if held_out:
            files.append(scratch / HELD_OUT)
            files[-1].write_text(_suite(held_out), encoding="utf-8")
        write_sealed(
            scratch / "selection.json",
            {
                "dataset": name,
                "files": vouched(scratch, files),
                "take": settings.take,
                "part_size": settings.part_size,
                "rows": sidecar["counts"]["rows"],
                "selected": rows,
                "held_out": len(held_out),
                "surplus": count - len(dropped) - len(held_out) - rows,
                "rejected": rejected,
                "duplicates": _by_dataset(dropped, Reason.DUPLICATE),
                "near_duplicates": _by_dataset(dropped, Reason.NEAR_DUPLICATE),
                "modes": dict(Counter(prompt.mode for part in parts for prompt in part.prompts)),
                "parts": [
                    {"name": part.name, "rows": len(part.prompts), "dropped": len(part.dropped)}
                    for part in parts
                    if part.prompts
                ],
            },
        )


def read_selection(folder: Path) -> list[str]:
    """The names of the parts that a selection holds, in order.

    Raises:
        ContractError: there is no readable selection in `folder`.
    """
    path = folder / "selection.json"
    content = read_json(path)
    try:
        names = [str(part["name"]) for part in content["parts"]]
        # They become paths.
        if wrong := [name for name in names if not (name.isascii() and name.isdecimal())]:
            raise ValueError(f"a part of the name {wrong[0]!r}")
        return names
    except (TypeError, KeyError, ValueError) as error:
        raise ContractError(
            f"{path} does not list the parts of a selection",
            saw=error,
            remedy=f"remove {folder} and run the build again",
        ) from error


def whole_selection(folder: Path) -> list[str]:
    """The same, once it is known that the sidecars of all parts are there.

    Snakemake knows the folder alone, and would not miss them.

    Raises:
        ContractError: there is no readable selection in `folder`, or a part of it is gone.
    """
    names = read_selection(folder)
    if gone := [name for name in names if not (folder / f"{name}.json").is_file()]:
        raise ContractError(
            f"{folder} lacks parts that were selected",
            saw=f"no {', '.join(f'{name}.json' for name in gone)}",
            remedy="run `make verify ARGS=--repair`, then the build: the same prompts come back",
        )
    return names


def take_parts(settings: Settings, candidates: Path, count: int, earlier: list[Path]) -> list[Part]:
    """Whole parts in their order until they hold `take` prompts; one may hold none.

    `count` is the number of candidates. Later parts are not looked at.
    """
    index = read_index(candidates.with_suffix(".safetensors"))
    table, size = candidates.with_suffix(".parquet"), settings.part_size
    taken: list[Part] = []
    rows = start = held_out = 0
    while rows < settings.take and start < count:
        wanted = settings.take - rows + settings.held_out - held_out
        ahead = math.ceil(wanted * _MARGIN / size) * size
        stop = min(start + ahead, count)
        found = repeats(index.head(start, stop), earlier)
        prompts = read_prompt_slice(table, start, stop)
        for first in range(0, stop - start, size):
            if rows >= settings.take:
                break
            wanted = settings.held_out - held_out
            part = _part(settings, (start + first) // size, first, prompts, found, wanted)
            taken.append(part)
            rows += len(part.prompts)
            held_out += len(part.held_out)
        start = stop
    return taken


def mode_of(seed: int, key: str, thinking_share: float) -> str:
    """The mode of a prompt: a share of all keys think, more of the same ones as the share grows."""
    place = xxhash.xxh3_64_intdigest(f"{seed}\0mode\0{key}".encode()) / 2**64
    return "thinking" if place < thinking_share else "instant"


def _part(
    settings: Settings,
    number: int,
    first: int,
    prompts: list[Prompt],
    found: dict[int, Repeat],
    held_out: int,
) -> Part:
    """One part of `prompts`, from `first` on; its first `held_out` prompts are not selected."""
    part = Part(number, [], [], [])
    for row, prompt in enumerate(prompts[first : first + settings.part_size], first):
        if row in found:
            part.dropped.append((prompt, found[row]))
        else:
            mode = mode_of(settings.seed, prompt.key, settings.thinking_share)
            chosen = part.held_out if len(part.held_out) < held_out else part.prompts
            chosen.append(replace(prompt, part=number, mode=mode))
    return part


def _suite(prompts: Iterable[Prompt]) -> str:
    """Prompts as a suite of one domain, their dataset (docs/bench.md)."""
    rows = [
        {
            "id": prompt.id,
            "domain": prompt.dataset,
            "system": prompt.system,
            "turns": prompt.turns,
            "mode": prompt.mode,
            "tools": json.loads(prompt.tools) if prompt.tools else None,
        }
        for prompt in prompts
    ]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _by_dataset(dropped: list[tuple[Prompt, Repeat]], reason: Reason) -> dict[str, int]:
    return dict(Counter(repeat.dataset for _, repeat in dropped if repeat.reason == reason))


def _rejects(dropped: list[tuple[Prompt, Repeat]]) -> pa.Table:
    words = {Reason.DUPLICATE: "same text as", Reason.NEAR_DUPLICATE: "nearly the text of"}
    rows = [
        {
            "id": prompt.id,
            "dataset": prompt.dataset,
            "reason": str(repeat.reason),
            "detail": f"{words[repeat.reason]} {repeat.id}",
            "text": head(prompt.turns[0]),
        }
        for prompt, repeat in dropped
    ]
    return pa.Table.from_pylist(rows, schema=REJECTS)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder`; on a clean exit it is fsynced and takes its place.

    On an exception `folder` is left as it was.
    """
    scratch = folder.with_name(f".{folder.name}.tmp")
    old = folder.with_name(f".{folder.name}.old")
    # What a killed run left behind.
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        fsync_directory(scratch)
        # A folder cannot be renamed over one that holds files. Killed in between, the next run
        # finds none and makes it again.
        if folder.exists():
            os.rename(folder, old)
        os.rename(scratch, folder)
        fsync_directory(folder.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _write_part(folder: Path, part: Part, provenance: dict[str, Any]) -> None:
    file = folder / f"{part.name}.parquet"
    write_prompts(file, part.prompts)
    # Nothing of other parts or of the sources: a part that stays the same must look the same.
    own = {key: provenance[key] for key in ("dataset", "adapter", "licence")}
    modes = Counter(prompt.mode for prompt in part.prompts)
    counts = {"rows": len(part.prompts), "dropped": len(part.dropped), "modes": dict(modes)}
    write_sidecar(
        folder / f"{part.name}.json",
        "prompts",
        [file],
        counts,
        {**own, "part": part.number},
    )


def _licence(provenance: dict[str, Any], rows: int) -> dict[str, Any]:
    facts = ("dataset", "adapter", "category", "licence", "attribution", "share_alike", "gated")
    origin = provenance["origin"]
    return {
        **{name: provenance[name] for name in facts},
        "id": origin.get("repo", provenance["adapter"]),
        "revision": origin.get("commit"),
        "rows": rows,
    }
