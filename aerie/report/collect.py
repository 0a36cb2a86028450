"""Reads the artifacts of a build into one object. Whatever was not given is simply absent."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aerie.errors import ContractError
from aerie.files import read_json
from aerie.report.blocks import Source
from aerie.report.text import count, dig, number, rows, table, total


@dataclass(frozen=True)
class Inputs:
    """Paths of the artifacts that a report is made of; all but the benches may be left out."""

    bench: list[Path]
    draft: Path | None = None
    eval: Path | None = None
    train: Path | None = None
    coverage: Path | None = None
    map: Path | None = None
    target: Path | None = None
    lock: Path | None = None
    scaling: Path | None = None
    map_study: Path | None = None
    mix_study: Path | None = None
    rolling: Path | None = None
    selections: list[Path] = field(default_factory=list)
    candidates: list[Path] = field(default_factory=list)
    licences: list[Path] = field(default_factory=list)
    responses: list[Path] = field(default_factory=list)
    states: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Document:
    """The content of one artifact and where the page says that it came from."""

    source: Source
    path: Path
    content: Any


@dataclass
class Dataset:
    """What became of the rows of one dataset; None where no artifact says."""

    name: str
    rows: int | None = None
    candidates: int | None = None
    prompts: int | None = None
    responses: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    parts: int = 0
    prompt_rejects: Counter[str] = field(default_factory=Counter)
    response_rejects: Counter[str] = field(default_factory=Counter)
    licence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Material:
    """Everything that the page shows."""

    benches: list[Document]
    draft: Document | None
    eval: Document | None
    train: Document | None
    coverage: Document | None
    map: Document | None
    target: Document | None
    lock: Document | None
    scaling: Document | None
    map_study: Document | None
    mix_study: Document | None
    rolling: Document | None
    states: list[Document]
    data_sources: list[Source]
    licence_sources: list[Source]
    datasets: list[Dataset]


def collect(inputs: Inputs, page: Path) -> Material:
    """Read the artifacts for a report at `page`.

    Raises:
        ContractError: a file that was named is missing or is not JSON, or no bench was named.
    """
    if not inputs.bench:
        raise ContractError(
            "a report needs at least one bench JSON", remedy="pass --bench bench/<run>/<suite>.json"
        )

    def one(path: Path | None) -> Document | None:
        return None if path is None else _document(path, page)

    def many(paths: list[Path]) -> list[Document]:
        return [_document(path, page) for path in paths]

    candidates, selections = many(inputs.candidates), many(inputs.selections)
    responses, licences = many(inputs.responses), many(inputs.licences)
    return Material(
        benches=many(inputs.bench),
        draft=one(inputs.draft),
        eval=one(inputs.eval),
        train=None if inputs.train is None else _lines(inputs.train, page),
        coverage=one(inputs.coverage),
        map=one(inputs.map),
        target=one(inputs.target),
        lock=one(inputs.lock),
        scaling=one(inputs.scaling),
        map_study=one(inputs.map_study),
        mix_study=one(inputs.mix_study),
        rolling=one(inputs.rolling),
        states=many(inputs.states),
        data_sources=[doc.source for doc in (*candidates, *selections, *responses)],
        licence_sources=[doc.source for doc in licences],
        datasets=_datasets(candidates, selections, responses, licences),
    )


def source(path: Path, page: Path) -> Source:
    """How the page names and links `path`."""
    relative = Path(os.path.relpath(path, page.parent)).as_posix()
    return Source(relative, quote(relative))


def _document(path: Path, page: Path) -> Document:
    return Document(source(path, page), path, read_json(path))


def _lines(path: Path, page: Path) -> Document:
    entries = []
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ContractError(
            f"{path} is missing", remedy="run the build again: it makes what is missing"
        ) from error
    for index, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            raise ContractError(
                f"{path}, line {index}, is not JSON",
                saw=error,
                remedy=f"remove {path.parent} and run the build again: the draft is trained anew",
            ) from error
    return Document(source(path, page), path, entries)


def _name(document: Document) -> str:
    """The dataset that an artifact belongs to: what it says, else the folder that it lies in."""
    for keys in (("dataset",), ("provenance", "dataset")):
        if isinstance(found := dig(document.content, *keys), str):
            return found
    return document.path.parent.name


def _datasets(
    candidates: Iterable[Document],
    selections: Iterable[Document],
    responses: Iterable[Document],
    licences: Iterable[Document],
) -> list[Dataset]:
    found: dict[str, Dataset] = {}

    def dataset(document: Document) -> Dataset:
        name = _name(document)
        return found.setdefault(name, Dataset(name))

    for document in candidates:
        entry, counts = dataset(document), table(document.content, "counts")
        entry.rows, entry.candidates = count(counts, "rows"), count(counts, "candidates")
        _add_rejects(entry.prompt_rejects, counts)
    for document in selections:
        _add_selection(dataset(document), document.content)
    for document in responses:
        entry, counts = dataset(document), table(document.content, "counts")
        entry.parts += 1
        entry.responses = total((entry.responses, count(counts, "rows")))
        entry.prompt_tokens = total((entry.prompt_tokens, count(counts, "prompt_tokens")))
        entry.output_tokens = total((entry.output_tokens, count(counts, "output_tokens")))
        _add_rejects(entry.response_rejects, counts)
    for document in licences:
        dataset(document).licence = table(document.content)
    return list(found.values())


def _add_selection(entry: Dataset, content: Any) -> None:
    parts = [count(part, "rows") for part in rows(content, "parts")]
    known = total(parts)
    entry.prompts = count(content, "selected") if known is None else known
    # Candidates that an earlier dataset has too, exactly or nearly.
    for key, reason in (("duplicates", "duplicate"), ("near_duplicates", "near_duplicate")):
        repeated = table(content, key)
        if shared := total(number(repeated, owner) for owner in repeated):
            entry.prompt_rejects[reason] += shared


def _add_rejects(rejects: Counter[str], counts: dict[str, Any]) -> None:
    for reason in table(counts, "rejects"):
        rejects[reason] += count(counts, "rejects", reason) or 0
