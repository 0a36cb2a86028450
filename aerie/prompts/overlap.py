"""What the datasets of a mix repeat of each other, and of themselves: how diverse the mix is."""

from pathlib import Path
from typing import Any

from aerie.contracts import VERSIONS
from aerie.contracts.sidecar import read_sidecar
from aerie.errors import ContractError
from aerie.files import read_json, replacing, write_sealed

_OWN = ("duplicate", "near_duplicate")


def write_overlap(candidates: list[Path], selections: list[Path], out: Path) -> None:
    """Write `out` and the same for people beside it, as Markdown.

    `candidates` are the files candidates.json and `selections` the files selection.json of all
    datasets, both in priority order.

    Raises:
        ContractError: one of them is missing or damaged.
    """
    datasets = [_dataset(*paths) for paths in zip(candidates, selections, strict=True)]
    distinct = sum(entry["candidates"] * entry["fresh_share"] for entry in datasets)
    usable = sum(entry["usable"] for entry in datasets)
    content = {
        "artifact": "overlap",
        "contract": VERSIONS["overlap"],
        "datasets": datasets,
        "usable": usable,
        "distinct": round(distinct),
        "distinct_share": round(distinct / usable, 4) if usable else 0.0,
    }
    write_sealed(out, content)
    with replacing(out.with_suffix(".md")) as scratch:
        scratch.write_text(_page(content), encoding="utf-8")


def _dataset(candidates: Path, selection: Path) -> dict[str, Any]:
    counts = read_sidecar(candidates, "candidates")["counts"]
    content = read_json(selection)
    try:
        exact, near = content["duplicates"], content["near_duplicates"]
        judged = content["selected"] + sum(exact.values()) + sum(near.values())
        repeated = sum(counts["rejects"].get(reason, 0) for reason in _OWN)
        return {
            "dataset": content["dataset"],
            "usable": counts["candidates"] + repeated,
            "candidates": counts["candidates"],
            "judged": judged,
            "selected": content["selected"],
            "exact": exact,
            "near": near,
            "own_share": _share(counts["candidates"], counts["candidates"] + repeated),
            "fresh_share": _share(content["selected"], judged),
        }
    except (TypeError, KeyError) as error:
        raise ContractError(
            f"{selection} lacks a field",
            saw=f"no {error}",
            remedy=f"remove {selection.parent} and run the build again",
        ) from error


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _page(content: dict[str, Any]) -> str:
    datasets = content["datasets"]
    lines = [
        "# Overlap of the datasets",
        "",
        f"{content['usable']:,} usable rows hold about {content['distinct']:,} distinct prompts: "
        f"{content['distinct_share']:.1%}.",
        "",
        "`own` is the share of a dataset's usable rows that its own rows do not repeat; `fresh` "
        "the share of its candidates that no dataset before it has, exactly or nearly, among those "
        "that were looked at for its take (a random draw of all of them).",
        "",
        "| dataset | usable rows | candidates | own | looked at | selected | fresh |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {entry['dataset']} | {entry['usable']:,} | {entry['candidates']:,} | "
        f"{entry['own_share']:.1%} | {entry['judged']:,} | {entry['selected']:,} | "
        f"{entry['fresh_share']:.1%} |"
        for entry in datasets
    ]
    pairs = [
        (entry["dataset"], owner, entry["exact"].get(owner, 0), entry["near"].get(owner, 0))
        for entry in datasets
        for owner in sorted({*entry["exact"], *entry["near"]})
    ]
    lines += ["", "## Who repeats whom", ""]
    if pairs:
        lines += ["| dataset | repeats | exactly | nearly |", "|---|---|---:|---:|"]
        ordered = sorted(pairs, key=lambda pair: (-pair[2] - pair[3], pair))
        lines += [f"| {a} | {b} | {exact:,} | {near:,} |" for a, b, exact, near in ordered]
    else:
        lines.append("No dataset repeats another among the prompts that were looked at.")
    return "\n".join(lines) + "\n"
