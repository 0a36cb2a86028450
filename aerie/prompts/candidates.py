"""Candidates: all distinct prompts of one dataset, in the order in which they are taken.

The order and the choice among duplicates follow from content alone: neither the order of files and
rows nor what other datasets hold has a part in them.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from aerie.contracts.prompts import Prompt, Reason, Reject, write_prompts, write_rejects
from aerie.contracts.sidecar import write_sidecar
from aerie.errors import DataError, GateError
from aerie.files import digest_json
from aerie.prompts.adapters import Adapter, adapter
from aerie.prompts.limits import TargetLimits
from aerie.prompts.normalise import Normalised, Rejected, normalise
from aerie.prompts.source import Row, Source
from aerie.prompts.text import head, prompt_key
from aerie.target import Target


@dataclass(frozen=True)
class Settings:
    """What decides a dataset's candidates: its place in the mix does not, nor does its take."""

    name: str
    adapter: str
    path: Path
    mode: str = "instant"
    max_rejected_share: float = 0.5
    max_tokens: int = 8192
    max_turns: int = 4
    seed: int = 0


@dataclass
class Collected:
    """Candidates in rank order, and the rows that did not become one."""

    rows: int = 0
    candidates: list[Prompt] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    def counts(self) -> dict[str, Any]:
        """Rows, candidates, rejects by reason, and candidates by repair."""
        return {
            "rows": self.rows,
            "candidates": len(self.candidates),
            "rejects": dict(Counter(str(reject.reason) for reject in self.rejects)),
            "flags": dict(Counter(flag for prompt in self.candidates for flag in prompt.flags)),
        }


class _Accepted(NamedTuple):
    preference: tuple[int, str]
    id: str
    prompt: Normalised


def build(settings: Settings, target: Target, out: Path) -> dict[str, Any]:
    """Write `candidates.parquet`, `rejects.parquet` and the sidecar `candidates.json` to `out`.

    Returns the sidecar.

    Raises:
        ConfigError: there is no such adapter.
        DataError: the dataset is missing, damaged or of another schema.
        GateError: more of its rows are rejected than the settings allow.
    """
    reader = adapter(settings.adapter)
    source = Source(settings.path, reader)
    limits = TargetLimits.of(target, settings.max_tokens, settings.mode)
    collected = collect(settings, reader, source, limits)
    rejects, candidates = out / "rejects.parquet", out / "candidates.parquet"
    write_rejects(rejects, collected.rejects)
    check_rejected_share(settings, collected)
    write_prompts(candidates, collected.candidates)
    provenance = {
        "dataset": settings.name,
        "adapter": reader.id,
        "category": reader.category,
        "licence": reader.licence,
        "sources": source.digests(),
        "target_revision": target.revision,
        "settings": {
            "mode": settings.mode,
            "max_tokens": settings.max_tokens,
            "max_turns": settings.max_turns,
            "seed": settings.seed,
        },
    }
    return write_sidecar(
        out / "candidates.json",
        "candidates",
        [candidates, rejects],
        collected.counts(),
        provenance,
    )


def collect(settings: Settings, reader: Adapter, source: Source, limits: TargetLimits) -> Collected:
    """Read, adapt, normalise and order all rows; each is a candidate or a reject afterwards."""
    result = Collected()
    accepted: list[_Accepted] = []
    for row in source.rows(f"candidates {settings.name}"):
        result.rows += 1
        try:
            prompt = _prompt(row, reader, settings.max_turns, limits)
        except Rejected as no:
            result.rejects.append(_reject(settings.name, row, no))
        else:
            accepted.append(_Accepted(_preference(prompt), row.id, prompt))
    if not result.rows:
        raise DataError(f"{settings.path} holds no row of {reader.id}")
    _keep_distinct(settings, accepted, result)
    result.candidates.sort(key=lambda prompt: (prompt.rank, prompt.key))
    result.rejects.sort(key=lambda reject: reject.id)
    return result


def rank(seed: int, dataset: str, key: str) -> int:
    """The place of a key in its dataset's order: xxh3-64 of all three, as a signed integer."""
    digest = xxhash.xxh3_64_digest(f"{seed}\0{dataset}\0{key}".encode())
    return int.from_bytes(digest, "big", signed=True)


def check_rejected_share(settings: Settings, collected: Collected) -> None:
    """Stop when a dataset loses too much.

    A duplicate is not a loss, since its text is a candidate.

    Raises:
        GateError: with the counts of all reasons and an example of each.
    """
    lost = [reject for reject in collected.rejects if reject.reason != Reason.DUPLICATE]
    share = len(lost) / collected.rows
    if share <= settings.max_rejected_share:
        return
    examples = {reject.reason: reject for reject in reversed(lost)}
    reasons = Counter(reject.reason for reject in lost).most_common()
    seen = "".join(
        f"\n    {count:,} x {reason}, as {examples[reason].id}: "
        f"{examples[reason].detail} | {head(examples[reason].text, 60)}"
        for reason, count in reasons
    )
    raise GateError(
        "prompts",
        f"{len(lost):,} of {collected.rows:,} rows of {settings.name} were rejected",
        saw=f"a share of {share:.3f}{seen}",
        expected=f"at most {settings.max_rejected_share} (max_rejected_share)",
        remedy="correct the dataset or its adapter; if these reasons are expected, raise "
        f"max_rejected_share of {settings.name}",
    )


def _prompt(row: Row, reader: Adapter, max_turns: int, limits: TargetLimits) -> Normalised:
    if row.value is None:
        raise Rejected(row.reason, row.problem)
    found = reader.find(row.value)
    prompt = normalise(found, keeps_system=reader.keeps_system, max_turns=max_turns)
    limits.check(prompt)
    return prompt


def _reject(dataset: str, row: Row, no: Rejected) -> Reject:
    text = row.text or json.dumps(row.value, ensure_ascii=False, default=str)
    return Reject(row.id, dataset, no.reason, head(no.detail), head(text))


def _preference(prompt: Normalised) -> tuple[int, str]:
    """Which of two duplicates is kept: the shorter, free of invisible characters and white space.

    The digest decides between equally long ones. It covers all that counts, the identity too, so
    that it makes no difference which of those with equal digests goes first.
    """
    size = sum(map(len, prompt.turns), len(prompt.system or ""))
    return size, digest_json(vars(prompt))


def _keep_distinct(settings: Settings, accepted: list[_Accepted], result: Collected) -> None:
    first: dict[str, str] = {}
    for _, id, prompt in sorted(accepted, key=lambda one: (one.preference, one.id)):
        key = prompt_key(prompt.system, prompt.turns)
        names = [f"text {key}"]
        if prompt.identity is not None:
            names.append(f"identity {prompt.identity}")
        known = next((name for name in names if name in first), None)
        if known is None:
            first.update(dict.fromkeys(names, id))
            result.candidates.append(_candidate(settings, key, prompt))
        else:
            what = "same text" if known.startswith("text") else f"same {known}"
            detail = head(f"{what} as {first[known]}")
            result.rejects.append(
                Reject(id, settings.name, Reason.DUPLICATE, detail, head(prompt.turns[0]))
            )


def _candidate(settings: Settings, key: str, prompt: Normalised) -> Prompt:
    return Prompt(
        id=f"{settings.name}-{key}",
        dataset=settings.name,
        key=key,
        rank=rank(settings.seed, settings.name, key),
        mode=settings.mode,
        system=prompt.system,
        turns=prompt.turns,
        tools=prompt.tools,
        flags=prompt.flags,
        stratum=prompt.stratum,
        native=prompt.native,
    )
