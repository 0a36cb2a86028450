"""What a work folder takes: files, bytes and tokens by phase and dataset, and what is missing.

The forecast is of answers and states, the two that fill disks. Where a selection was made it counts
parts; where there is only a plan it takes the plan's word.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.contracts.sidecar import read_sidecar
from aerie.errors import ContractError
from aerie.files import read_json
from aerie.plan.facts import current_sidecars, target_revision
from aerie.plan.storage import RESPONSES_BYTES_PER_TOKEN
from aerie.prompts.select import read_selection
from aerie.storage.walk import dataset_of, files_of, resolved


@dataclass
class Usage:
    """What one phase has of one dataset. `tokens` is None where files are not of tokens."""

    phase: str
    dataset: str | None
    files: int = 0
    bytes: int = 0
    tokens: int | None = None


@dataclass(frozen=True)
class Missing:
    """What a phase has still to write for a dataset; None where nothing tells.

    `basis` says how tokens are known: `exact`, by the `mean` of answers that are there, or `plan`.
    """

    phase: str
    dataset: str
    parts: int | None
    tokens: int | None
    bytes: int | None
    basis: str


@dataclass
class _Part:
    """What is known of a part: prompts that were selected, tokens of its answers and states."""

    prompts: int
    answered: int | None = None
    captured: int | None = None


@dataclass
class _Dataset:
    parts: dict[str, _Part] = field(default_factory=dict)
    planned: dict[str, Any] | None = None

    def tokens_per_prompt(self) -> tuple[float | None, str]:
        answered = [part for part in self.parts.values() if part.answered is not None]
        prompts = sum(part.prompts for part in answered)
        if prompts:
            return sum(part.answered or 0 for part in answered) / prompts, "mean"
        if self.planned and self.planned["prompts"]:
            return self.planned["tokens"]["expected"] / self.planned["prompts"], "plan"
        return None, "unknown"


def usage(work: Path) -> list[Usage]:
    """What lies in `work`, in the order of the phases. Links are not followed.

    Raises:
        ContractError: there is no such folder, or target.json is damaged.
    """
    work = resolved(work)
    found: dict[tuple[str, str | None], Usage] = {}
    for file in files_of(work):
        phase = file.path.parts[0] if len(file.path.parts) > 1 else "other"
        key = (phase, dataset_of(file.path))
        row = found.setdefault(key, Usage(*key))
        row.files += 1
        row.bytes += file.bytes
    for phase, pattern in _TOKENS.items():
        for path, content in current_sidecars(work, pattern, phase, None).items():
            key = (phase, dataset_of(path.relative_to(work)))
            # What is reached through a link has no row.
            if key in found:
                found[key].tokens = (found[key].tokens or 0) + _tokens(content)
    return sorted(found.values(), key=lambda row: (_order(row.phase), row.dataset or ""))


def forecast(work: Path) -> list[Missing]:
    """What answers and states are still to be written, by dataset; empty where none are.

    Raises:
        ContractError: there is no such folder, or target.json is damaged.
    """
    work = resolved(work)
    plan = _plan(work)
    datasets = _datasets(work, plan)
    each = {phase: _bytes_per_token(work, phase, plan) for phase in _TOKENS}
    missing = [
        _missing(phase, name, dataset, each[phase])
        for phase in _TOKENS
        # States that come and go are not still to come.
        if phase != "states" or not _rolls(work)
        for name, dataset in datasets.items()
    ]
    return [row for row in missing if row]


def _rolls(work: Path) -> bool:
    """Whether states are captured as drafts are trained, or were."""
    return any(any(work.glob(pattern)) for pattern in ("journal/rolling/*", "draft/*/rolling.json"))


_PHASES = (
    "scout", "plan", "target", "sources", "candidates", "prompts", "suites", "overlap", "responses",
    "journal", "vocab", "states", "draft", "bench", "scaling", "map_study",
    "mix_study", "report",
)  # fmt: skip
_TOKENS = {"responses": "responses/*/*.json", "states": "states/*/*/index.json"}


def _order(phase: str) -> tuple[int, str]:
    return (_PHASES.index(phase) if phase in _PHASES else len(_PHASES), phase)


def _tokens(content: dict[str, Any]) -> int:
    counts = content["counts"]
    if content["artifact"] == "states":
        return int(counts["tokens"])
    return int(counts["prompt_tokens"] + counts["output_tokens"])


def _plan(work: Path) -> dict[str, Any] | None:
    try:
        return read_sidecar(work / "plan" / "plan.json", "plan")
    except ContractError:
        return None


def _datasets(work: Path, plan: dict[str, Any] | None) -> dict[str, _Dataset]:
    found: dict[str, _Dataset] = defaultdict(_Dataset)
    for entry in plan["entries"] if plan else ():
        found[entry["dataset"]].planned = entry
    for path in sorted(work.glob("prompts/*/selection.json")):
        rows = dict(zip(read_selection(path.parent), read_json(path)["parts"], strict=True))
        found[path.parent.name].parts = {name: _Part(each["rows"]) for name, each in rows.items()}
    revision = target_revision(work)
    for phase, pattern in _TOKENS.items():
        for path, content in current_sidecars(work, pattern, phase, revision).items():
            _, name, place = path.relative_to(work).with_suffix("").parts[:3]
            part = found[name].parts.get(place) if name in found else None
            if part and phase == "responses":
                part.answered = _tokens(content)
            elif part:
                part.captured = _tokens(content)
    return dict(found)


def _bytes_per_token(work: Path, phase: str, plan: dict[str, Any] | None) -> float | None:
    """Measured where there are files, else what the plan says."""
    contents = list(current_sidecars(work, _TOKENS[phase], phase, None).values())
    tokens = sum(map(_tokens, contents))
    if tokens:
        files = [entry for content in contents for entry in content["files"].values()]
        return float(sum(entry["bytes"] for entry in files) / tokens)
    if phase == "responses":
        return RESPONSES_BYTES_PER_TOKEN
    if plan is None:
        return None
    return float(plan["storage"]["bytes_per_token"][plan["storage"]["codec"]])


def _missing(phase: str, name: str, dataset: _Dataset, each: float | None) -> Missing | None:
    if not dataset.parts:
        planned = dataset.planned
        tokens = round(planned["tokens"]["expected"]) if planned else None
        return Missing(
            phase, name, planned["parts"] if planned else None, tokens, _bytes(tokens, each), "plan"
        )
    done = "answered" if phase == "responses" else "captured"
    left = [part for part in dataset.parts.values() if getattr(part, done) is None]
    if not left:
        return None
    mean, basis = dataset.tokens_per_prompt()
    if all(part.answered is not None for part in left):
        mean, basis = 0.0, "exact"
    tokens = None
    if mean is not None:
        tokens = sum(
            part.answered if part.answered is not None else round(part.prompts * mean)
            for part in left
        )
    return Missing(phase, name, len(left), tokens, _bytes(tokens, each), basis)


def _bytes(tokens: int | None, each: float | None) -> int | None:
    return None if tokens is None or each is None else round(tokens * each)
