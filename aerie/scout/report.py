"""The report of a scouting: what the ten categories hold, as JSON, and as a page in render.py."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aerie.contracts import VERSIONS
from aerie.errors import ContractError, DataError
from aerie.files import read_json, replacing, write_sealed
from aerie.scout.categories import CATEGORIES, SUGGESTED
from aerie.scout.render import markdown


def write_report(categories: Iterable[Path], json_out: Path, markdown_out: Path) -> dict[str, Any]:
    """Write report.json and report.md from the files of the categories; the content is returned.

    Raises:
        ContractError: a category's file is missing or damaged.
        DataError: no category could be searched.
    """
    content = collect(categories)
    with replacing(markdown_out) as scratch:
        scratch.write_text(markdown(content), encoding="utf-8")
    write_sealed(json_out, content)
    return content


def collect(paths: Iterable[Path]) -> dict[str, Any]:
    """Everything that the report says. Raises as `write_report`."""
    categories = sorted(map(_read, paths), key=_place)
    failed = [each for each in categories if each["status"] == "failed"]
    if len(failed) == len(categories):
        raise DataError(
            "the scout found nothing: no category could be searched",
            saw=failed[0]["failure"]["saw"],
            remedy=failed[0]["failure"]["remedy"],
        )
    datasets: dict[str, dict[str, Any]] = {}
    for category in categories:
        for candidate in category["candidates"]:
            entry = datasets.setdefault(candidate["id"], {**candidate, "categories": []})
            entry["categories"].append(category["category"]["key"])
    return {
        "artifact": "scout",
        "contract": VERSIONS["scout"],
        "endpoints": sorted({each["endpoint"] for each in categories}),
        "weights": categories[0]["settings"]["weights"],
        "traffic": categories[0]["settings"]["traffic"],
        "failed": [each["category"]["key"] for each in failed],
        "suggested": _suggested(categories, datasets),
        "mix": _mix(categories, datasets),
        "licences": _licences(datasets),
        "gated": sorted(id for id, each in datasets.items() if each["gated"] != "no"),
        "unverified": {
            id: each["unverified"] for id, each in sorted(datasets.items()) if each["unverified"]
        },
        "datasets": len(datasets),
        "categories": categories,
    }


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path)
    expected = {"artifact": "scout", "contract": VERSIONS["scout"]}
    saw = {key: content.get(key) for key in expected} if isinstance(content, dict) else content
    if saw != expected:
        remedy = f"remove {path} and run `make scout` again"
        raise ContractError(
            f"{path} is not a scouted category", saw=saw, expected=expected, remedy=remedy
        )
    return dict(content)


def _place(category: dict[str, Any]) -> int:
    return list(CATEGORIES).index(category["category"]["key"])


def _suggested(
    categories: list[dict[str, Any]], datasets: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Which of the ten that are suggested for Kimi-K2.5 were seen, and which could not be."""
    searched = {each["category"]["key"]: each["status"] == "searched" for each in categories}
    return [
        {
            "number": each.number,
            "category": each.category,
            "ids": list(each.ids),
            "found": [id for id in each.ids if id in datasets],
            "searched": searched.get(each.category, False),
        }
        for each in SUGGESTED
    ]


def _mix(
    categories: list[dict[str, Any]], datasets: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The datasets of the mix, also those that no search named: they may be gone."""
    return [
        {
            "id": id,
            "entry": entry,
            "categories": datasets[id]["categories"] if id in datasets else [],
        }
        for id, entry in sorted(categories[0]["mix"].items(), key=lambda pair: pair[::-1])
    ]


def _licences(datasets: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for id, each in sorted(datasets.items()):
        found.setdefault(each["licence"], []).append(id)
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))
