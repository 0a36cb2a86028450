"""What a plan reads and does not compute: the target, the disk, and what earlier runs left."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aerie.config import ROOT, Config, PathSource
from aerie.contracts.sidecar import read_sidecar
from aerie.errors import ConfigError, ContractError
from aerie.files import read_json
from aerie.gates.disk import free_bytes
from aerie.plan.accept import Point, points
from aerie.plan.lengths import Answers
from aerie.plan.rates import Rates, read_rates
from aerie.plan.settings import Shape
from aerie.target import decoder_config

# Candidates lie in the order of a hash, so the first ones are a random sample.
_SAMPLED_CANDIDATES = 2000
# English and code, by the usual tokenizers; only used until the target has rendered the prompts.
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class Selected:
    """What `selection.json` says: prompts for which take, in how many parts."""

    take: int
    part_size: int
    prompts: int
    parts: int
    available: int


@dataclass(frozen=True)
class DatasetFacts:
    """What the work folder knows of one dataset; None where nothing was made yet.

    `turns` and `prompt_tokens` are means over sampled candidates. `answers` are those accepted,
    `answers_per_prompt` how many of them a prompt gave.
    """

    candidates: int | None = None
    selected: Selected | None = None
    turns: float | None = None
    prompt_tokens: float | None = None
    answers: Answers | None = None
    answers_per_prompt: float | None = None


@dataclass(frozen=True)
class Facts:
    """Everything external that a plan depends on. Bytes unless said otherwise."""

    shape: Shape
    shape_source: str
    datasets: dict[str, DatasetFacts]
    rates: Rates
    points: tuple[Point, ...]
    free: int
    present: int
    responses_bytes_per_token: float | None
    draft_bytes: int | None
    done: dict[str, int]


def read_facts(config: Config) -> Facts:
    """Read what the work folder of `config` and the disk below it say.

    Raises:
        ConfigError: the sizes of the target are not known.
        ContractError: an artifact is damaged.
    """
    work = ROOT / config.work
    shape, source = _shape(config, work)
    revision = target_revision(work)
    responses = current_sidecars(work, "responses/*/*.json", "responses", revision)
    states = current_sidecars(work, "states/*/*/index.json", "states", revision)
    tokens = sum(map(_response_tokens, responses.values()))
    stored = sum(
        file["bytes"] for content in responses.values() for file in content["files"].values()
    )
    stored += sum(
        path.stat().st_size for path in work.glob("journal/responses/**/*") if path.is_file()
    )
    drafts = current_sidecars(work, "draft/*/draft.json", "draft", revision)
    weights = [content["files"]["model.safetensors"]["bytes"] for content in drafts.values()]
    return Facts(
        shape=shape,
        shape_source=source,
        datasets={name: _dataset(work, name, responses) for name in config.datasets},
        rates=read_rates(work, responses, states, drafts),
        points=points(config.plan, work, drafts),
        free=free_bytes(work),
        present=stored
        + sum(content["counts"]["bytes"] for content in states.values())
        + sum(weights),
        responses_bytes_per_token=stored / tokens if tokens else None,
        draft_bytes=max(weights, default=None),
        done={
            "responses": len(responses),
            "states": len(states),
            "draft": len(drafts),
            **{
                phase: len(list(work.glob(pattern)))
                for phase, pattern in {
                    "source": "sources/*/source.json",
                    "candidates": "candidates/*/candidates.json",
                    "prompts": "prompts/*/selection.json",
                    "counts": "vocab/counts/*.json",
                    "map": "vocab/map.json",
                    "bench": "bench/*/*.json",
                }.items()
            },
        },
    )


def _shape(config: Config, work: Path) -> tuple[Shape, str]:
    sidecar = work / "target/target.json"
    if sidecar.exists():
        counts = read_sidecar(sidecar, "target")["counts"]
        return Shape(**{name: counts[name] for name in Shape.model_fields}), "target.json"
    if config.plan.shape:
        return config.plan.shape, "plan.shape"
    source = config.target.source
    path = ROOT / source.path / "config.json" if isinstance(source, PathSource) else None
    if path is None or not path.exists():
        raise ConfigError(
            f"the sizes of {config.target.name} are not known",
            saw=f"neither {sidecar} nor {path or 'a checkpoint folder'}",
            expected="layers, hidden size and context of the target",
            remedy="give plan.shape, or build the target first",
        )
    decoder = decoder_config(path.parent)
    try:
        shape = Shape(
            layers=decoder["num_hidden_layers"],
            hidden_size=decoder["hidden_size"],
            max_position=decoder["max_position_embeddings"],
        )
    except KeyError as error:
        raise ConfigError(
            f"{path} does not say the size of the target",
            saw=f"no {error}",
            remedy="give plan.shape",
        ) from error
    return shape, "the checkpoint's config.json"


def target_revision(work: Path) -> str | None:
    """The revision of the target in `work`; None where there is no target yet.

    Raises:
        ContractError: target.json is damaged.
    """
    sidecar = work / "target/target.json"
    if not sidecar.exists():
        return None
    return str(read_sidecar(sidecar, "target")["provenance"]["revision"])


def current_sidecars(
    work: Path, pattern: str, artifact: str, revision: str | None
) -> dict[Path, dict[str, Any]]:
    """Sidecars of what the target of `revision` made; those of an earlier contract are left out."""
    found = {}
    for path in sorted(work.glob(pattern)):
        try:
            content = read_sidecar(path, artifact)
        except ContractError:
            # The build makes it again, so that it says nothing of what is to come.
            continue
        if revision is None or content["provenance"].get("target") == revision:
            found[path] = content
    return found


def _response_tokens(sidecar: dict[str, Any]) -> int:
    counts = sidecar["counts"]
    return int(counts["prompt_tokens"] + counts["output_tokens"])


def _dataset(work: Path, name: str, responses: dict[Path, dict[str, Any]]) -> DatasetFacts:
    candidates = _candidates(work / "candidates" / name)
    turns, tokens = _sample(work / "candidates" / name) if candidates else (None, None)
    answers, each = _answers(work, name, responses)
    selection = work / "prompts" / name / "selection.json"
    return DatasetFacts(
        candidates=candidates,
        selected=_selected(read_json(selection)) if selection.exists() else None,
        turns=turns,
        prompt_tokens=tokens,
        answers=answers,
        answers_per_prompt=each,
    )


def _candidates(folder: Path) -> int | None:
    try:
        count: int = read_sidecar(folder / "candidates.json", "candidates")["counts"]["candidates"]
    except ContractError:
        return None
    return count


def _selected(content: dict[str, Any]) -> Selected:
    return Selected(
        take=content["take"],
        part_size=content["part_size"],
        prompts=content["selected"],
        parts=len(content["parts"]),
        available=content["selected"] + content["surplus"],
    )


def _sample(folder: Path) -> tuple[float | None, float | None]:
    """Mean turns of a candidate, and mean tokens of what comes before one of its answers."""
    turns, characters = 0, 0
    rows = list(islice(_rows(folder / "candidates.parquet"), _SAMPLED_CANDIDATES))
    for row in rows:
        texts = json.loads(row["turns"])
        turns += len(texts)
        before = len(row["system"] or "") + len(row["tools"] or "")
        # Each answer comes after all turns so far.
        for text in texts:
            before += len(text)
            characters += before
    if not turns:
        return None, None
    return turns / len(rows), characters / turns / _CHARACTERS_PER_TOKEN


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(
                batch_size=_SAMPLED_CANDIDATES, columns=["turns", "system", "tools"]
            ):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _answers(
    work: Path, name: str, responses: dict[Path, dict[str, Any]]
) -> tuple[Answers | None, float | None]:
    prompts: list[Any] = []
    outputs: list[Any] = []
    asked, given = 0, 0
    for path, content in responses.items():
        asked_of = work / "prompts" / name / path.name
        if path.parent.name != name or not asked_of.exists():
            continue
        asked += read_sidecar(asked_of, "prompts")["counts"]["rows"]
        given += content["counts"]["rows"]
        table = path.with_suffix(".parquet")
        try:
            columns = pq.read_table(table, columns=["prompt_ids", "output_ids"])
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(table, error) from error
        for into, column in ((prompts, "prompt_ids"), (outputs, "output_ids")):
            into.append(pc.list_value_length(columns[column]).to_numpy().astype(np.int64))
    if not given or not asked:
        return None, None
    return Answers(np.concatenate(prompts), np.concatenate(outputs)), given / asked


def _unreadable(path: Path, error: Exception) -> ContractError:
    return ContractError(
        f"{path} is not a readable table",
        saw=error,
        remedy=f"run `make verify WORK={path.parents[2]} ARGS=--repair`, then the plan again",
    )
