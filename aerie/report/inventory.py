"""Sections that say what went in: data, licences, models, gates, lock, and what the words mean."""

from collections import Counter
from typing import Any

from aerie.report.blocks import Facts, Figure, Key, Prose, Section, Table
from aerie.report.charts import Row, axis, rows_chart
from aerie.report.collect import Dataset, Material
from aerie.report.text import (
    DASH,
    count,
    decimal,
    dig,
    integer,
    listed,
    number,
    percent,
    plural,
    rows,
    shown,
    table,
    total,
    words,
)

GLOSSARY = {
    "accept_length": "Accept length (AL): tokens gained per round, 1 + accepted draft tokens / "
    "rounds, over all rounds together. One token of each round comes from the target itself.",
    "accept_length_by_request": "Accept length, mean of requests: the accept length of each "
    "request, averaged with equal weight, so that long answers do not dominate.",
    "simulated_accept_length": "Simulated accept length: the same count, walked over answers that "
    "exist already, without serving. It should agree with the measured one.",
    "ci95": "95 % interval: from a bootstrap that draws prompts with replacement. It covers which "
    "prompts were asked, not another machine or another domain.",
    "positions": "Acceptance by position: joint is the share of all rounds in which guesses 1 to i "
    "were all right; 1 plus their sum is the accept length. Conditional is the share of the rounds "
    "that reached guess i in which it was right.",
    "tokens_per_s": "Speed: output tokens divided by the time it took to produce them, one request "
    "at a time; warm-up is discarded.",
    "speedup": "Speed-up: speed with the draft divided by plain speed on the same prompts.",
    "round_cost": "Round cost R: time of one speculative round in plain decode steps. "
    "Speed-up = AL / R, of the prompts that were timed.",
    "break_even_accept_length": "Break-even: the accept length at which the draft neither gains "
    "nor loses, AL = R.",
    "coverage": "Coverage: share of supervised tokens whose id is in the map.",
    "supervised": "Supervised token: a token of an answer that the draft learns to predict.",
    "equal_outputs": "Equal outputs: share of prompts whose answer with the draft equals plain "
    "greedy decoding token for token. In float32 it must be all; in bfloat16 a pass over several "
    "tokens rounds otherwise than a pass over one, and near-ties of the target fall either way.",
    "k": "k: draft tokens proposed in a round.",
}


_DUTIES = {"share_alike": "share-alike", "gated": "gated"}


def data(material: Material) -> Section:
    """Rows, prompts, responses, tokens and rejects of each dataset."""
    section = Section(
        "data",
        "What it learnt from",
        "Data",
        "Every answer was written by the target itself, to prompts of these datasets.",
    )
    if not material.datasets:
        section.blocks.append(Prose("No data artifacts were given to this report."))
        return section
    section.blocks.append(_tokens_figure(material))
    section.blocks.append(_rejects_figure(material))
    return section


def _tokens_figure(material: Material) -> Figure:
    ordered = sorted(material.datasets, key=lambda dataset: -(dataset.output_tokens or 0))
    entries = [
        Row(d.name, f"{integer(d.output_tokens)} tokens", bar=d.output_tokens) for d in ordered
    ]
    values = [0.0, *(float(d.output_tokens or 0) for d in ordered)]
    every = _sums(ordered)
    chart = rows_chart(
        "chart-tokens",
        "Answer tokens by dataset",
        f"One bar a dataset, most first; {integer(every.output_tokens)} tokens in all.",
        entries,
        axis(values, integer),
    )
    head = ("Dataset", "Rows read", "Candidates", "Prompts", "Responses", "Prompt tokens")
    numbers = Table(
        "From rows to tokens",
        (*head, "Answer tokens", "Rejected prompts", "Rejected responses"),
        [_dataset_row(dataset) for dataset in ordered],
        footer=_dataset_row(every),
    )
    return Figure(
        "Answer tokens by dataset", chart, numbers, material.data_sources, "what the target wrote"
    )


def _sums(datasets: list[Dataset]) -> Dataset:
    return Dataset(
        name="All",
        rows=total(d.rows for d in datasets),
        candidates=total(d.candidates for d in datasets),
        prompts=total(d.prompts for d in datasets),
        responses=total(d.responses for d in datasets),
        prompt_tokens=total(d.prompt_tokens for d in datasets),
        output_tokens=total(d.output_tokens for d in datasets),
        prompt_rejects=sum((d.prompt_rejects for d in datasets), Counter()),
        response_rejects=sum((d.response_rejects for d in datasets), Counter()),
    )


def _dataset_row(dataset: Dataset) -> tuple[str, ...]:
    amounts = (dataset.rows, dataset.candidates, dataset.prompts, dataset.responses)
    tokens = (dataset.prompt_tokens, dataset.output_tokens)
    rejected = (dataset.prompt_rejects.total(), dataset.response_rejects.total())
    return (dataset.name, *map(integer, (*amounts, *tokens, *rejected)))


def _rejects_figure(material: Material) -> Figure | Prose:
    sides = (("prompt", "prompt_rejects", "even"), ("response", "response_rejects", "accent"))
    found: list[tuple[int, str, str, str]] = []
    entries: list[tuple[str, ...]] = []
    for side, field, mark in sides:
        sums: Counter[str] = Counter()
        for dataset in material.datasets:
            rejects: Counter[str] = getattr(dataset, field)
            sums.update(rejects)
            entries += [
                (dataset.name, side, words(reason), integer(amount))
                for reason, amount in rejects.most_common()
                if amount
            ]
        found += [(amount, reason, side, mark) for reason, amount in sums.items() if amount]
    if not found:
        return Prose("No row was rejected.", "Rejects")
    found.sort(key=lambda entry: (-entry[0], entry[1]))
    bars = [
        Row(words(reason), plural(amount, side), bar=amount, bar_mark=mark)
        for amount, reason, side, mark in found
    ]
    chart = rows_chart(
        "chart-rejects",
        "Rejected rows by reason",
        "; ".join(f"{words(reason)} {amount} ({side})" for amount, reason, side, _ in found) + ".",
        bars,
        axis([0.0, *(float(amount) for amount, *_ in found)], integer),
    )
    head = ("Dataset", "Side", "Reason", "Rows")
    numbers = Table("Rejects by dataset and reason", head, entries, numeric_from=3)
    legend = [
        Key("fill-even", "before selection or answer"),
        Key("fill-accent", "after the answer"),
    ]
    title, note = "Rejects by reason", "rows that were not trained on"
    return Figure(title, chart, numbers, material.data_sources, note, legend)


def licences(material: Material) -> Section:
    """The licence of each dataset."""
    section = Section("licences", "Licences", "Licences")
    known = [dataset for dataset in material.datasets if dataset.licence]
    if not known:
        section.blocks.append(Prose("No licence files were given to this report."))
        return section
    entries = [
        (
            dataset.name,
            *(shown(dig(dataset.licence, key)) for key in ("id", "licence", "category")),
            ", ".join(word for key, word in _DUTIES.items() if dataset.licence.get(key)) or DASH,
            shown(dig(dataset.licence, "attribution")),
            integer(count(dataset.licence, "rows")),
        )
        for dataset in known
    ]
    head = ("Dataset", "Source", "Licence", "Category", "Terms", "Attribution", "Rows")
    section.blocks.append(
        Table("Licences of the data", head, entries, 6, sources=material.licence_sources)
    )
    return section


def models(material: Material) -> Section:
    """Sizes of target and draft, and the captured layers in both conventions."""
    section = Section("models", "Target and draft", "Models")
    if material.target:
        counts = table(material.target.content, "counts")
        provenance = table(material.target.content, "provenance")
        items = [(key.capitalize(), _text(provenance, key)) for key in ("name", "dtype", "licence")]
        items += [(words(key).capitalize(), integer(count(counts, key))) for key in counts]
        items.append(("Revision", _text(provenance, "revision")))
        section.blocks.append(Facts("Target", items, [material.target.source]))
    if material.draft:
        counts = table(material.draft.content, "counts")
        provenance = table(material.draft.content, "provenance")
        layers = table(provenance, "layers")
        items = [
            (words(key).capitalize(), integer(count(counts, key)))
            for key in ("parameters", "trainable")
            if key in counts
        ]
        items += [
            ("Layers, output_hidden_states", listed(rows(layers, "hf_hidden_states"))),
            ("Layers, SGLang configuration", listed(rows(layers, "sglang_config"))),
            ("Bytes of the checkpoint", integer(_bytes(material.draft.content))),
            ("Trained for target", _text(provenance, "target")),
            ("With map", _text(provenance, "map")),
        ]
        section.blocks.append(Facts("Draft", items, [material.draft.source]))
    if not section.blocks:
        section.blocks.append(Prose("Neither target nor draft was given to this report."))
    return section


def _bytes(sidecar: Any) -> int | None:
    files = table(sidecar, "files")
    return total(number(files, name, "bytes") for name in files if name.endswith(".safetensors"))


def _text(value: Any, key: str) -> str:
    found = dig(value, key)
    return found if isinstance(found, str) and found else DASH


def gates(material: Material) -> Section:
    """What each gate let pass, and on what evidence."""
    section = Section(
        "gates",
        "Gates passed",
        "Gates",
        "A gate stops the build, so what lies behind it exists only if it let the build pass. "
        "Beside each is what it saw.",
    )
    entries = [
        (name, evidence or "no artifact given", "passed" if evidence else DASH)
        for name, evidence in _evidence(material)
    ]
    named = (material.coverage, material.draft, material.benches[0])
    sources = [document.source for document in named if document]
    head = ("Gate", "What it saw", "Result")
    section.blocks.append(
        Table("Gates in the order of the build", head, entries, 3, sources=sources)
    )
    return section


def _evidence(material: Material) -> list[tuple[str, str]]:
    bench = material.benches[0].content
    every = _sums(material.datasets)
    supervision = ""
    if every.output_tokens and every.prompt_tokens is not None:
        share = every.output_tokens / (every.output_tokens + every.prompt_tokens)
        supervision = f"{percent(share)} of all tokens are supervised"
    parts = len(material.states)
    tokens = total(number(document.content, "counts", "tokens") for document in material.states)
    states = f"{plural(parts, 'part')}, {integer(tokens)} tokens" if parts else ""
    fitted = states and "the states fitted"
    if material.rolling:
        captures = table(material.rolling.content, "captures")
        states = f"{plural(len(captures), 'part')}, captured while the draft was trained"
        fitted = "no more states at a time than rolling.budget_bytes"
    cover = ""
    if material.coverage:
        found = table(material.coverage.content, "datasets")
        known = [v for name in found if (v := number(found, name, "coverage")) is not None]
        overall = percent(number(material.coverage.content, "overall"), 2)
        cover = f"{overall} overall, {percent(min(known, default=None), 2)} in the lowest dataset"
    draft = ""
    if material.draft:
        parameters = integer(count(material.draft.content, "counts", "parameters"))
        draft = f"{parameters} parameters; keys, shapes, types and map agree"
    served, simulated = number(bench, "accept_length"), number(bench, "simulated_accept_length")
    accept = f"accept length {decimal(served)}, simulated {decimal(simulated)}"
    return [
        ("config", "every key is known and within its limits"),
        ("supervision", supervision),
        ("coverage", cover),
        ("disk", fitted),
        ("states", states),
        ("draft", draft),
        ("accept", "" if served is None else accept),
    ]


def lock(material: Material) -> Section:
    """Every input pinned: digests, versions, contract versions."""
    section = Section(
        "lock",
        "The lock",
        "Lock",
        "What this result was made from. The same lock gives the same result.",
    )
    for document in material.benches:
        bench = document.content
        for title, key in (("Digests", "digests"), ("Versions in the bench", "versions")):
            found = table(bench, key)
            items = [(words(name), shown(found[name])) for name in found]
            if items:
                section.blocks.append(Facts(title, items, [document.source]))
    if material.lock is None:
        section.blocks.append(Prose("No lock was given to this report."))
        return section
    content, source = material.lock.content, [material.lock.source]
    datasets = table(content, "datasets")
    if datasets:
        section.blocks.append(
            Table(
                "Datasets",
                ("Dataset", "Source", "Licence", "Digest of the source"),
                [
                    (name, *(_text(datasets[name], key) for key in ("id", "licence", "digest")))
                    for name in datasets
                ],
                numeric_from=4,
                sources=source,
            )
        )
    images = table(content, "images")
    items = [(name, shown(images[name])) for name in images]
    items += [("Commit", _text(content, "commit"))]
    section.blocks.append(Facts("Images and code", items, source))
    contracts = table(content, "contracts")
    items = [(words(name), shown(contracts[name])) for name in contracts]
    section.blocks.append(Facts("Contract versions", items, source))
    requirements = table(content, "requirements")
    for name in requirements:
        pins = table(requirements, name)
        entries = [(package, shown(pins[package])) for package in pins]
        head = ("Package", "Version")
        section.blocks.append(
            Table(f"Packages of {name}", head, entries, 2, sources=source, folded=True)
        )
    return section


def glossary(material: Material) -> list[tuple[str, str]]:
    """Each metric's name and meaning; the bench's own definition where it gives one."""
    own = table(material.benches[0].content, "definitions")
    result = []
    for key, text in GLOSSARY.items():
        name, _, meaning = text.partition(": ")
        given = own.get(key)
        result.append((name, _sentence(given if isinstance(given, str) and given else meaning)))
    result += [
        (words(key).capitalize(), _sentence(shown(own[key]))) for key in own if key not in GLOSSARY
    ]
    return result


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
