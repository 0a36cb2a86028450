"""What a card states, as far as it can be read: cards are written by hand, in any shape."""

from typing import Any, TypeGuard


def configurations(card: dict[str, Any]) -> dict[str, tuple[int | None, tuple[str, ...]]]:
    """Rows (None where a split has no count) and columns of each configuration."""
    found: dict[str, tuple[int | None, tuple[str, ...]]] = {}
    for each in _infos(card):
        splits, features = each.get("splits"), each.get("features")
        counts = [split.get("num_examples") for split in splits] if _objects(splits) else []
        known = [count for count in counts if isinstance(count, int)]
        rows = sum(known) if known and len(known) == len(counts) else None
        columns = (
            [str(one["name"]) for one in features if "name" in one] if _objects(features) else []
        )
        found[str(each.get("config_name") or "default")] = rows, tuple(columns)
    files = card.get("configs")
    for each in files if _objects(files) else []:
        if "config_name" in each:
            found.setdefault(str(each["config_name"]), (None, ()))
    return found


def download_bytes(card: dict[str, Any]) -> int | None:
    """Bytes of all configurations together, None where one has no figure."""
    sizes = [each.get("download_size") for each in _infos(card)]
    known = [size for size in sizes if isinstance(size, int)]
    return sum(known) if known and len(known) == len(sizes) else None


def licence(card: dict[str, Any]) -> str | None:
    """The Hub's identifier; several joined by `or`; `other (name)` for one of the authors' own."""
    given = card.get("license")
    names = [str(each) for each in (given if isinstance(given, list) else [given]) if each]
    if names == ["other"] and card.get("license_name"):
        return f"other ({card['license_name']})"
    return " or ".join(names) or None


def _infos(card: dict[str, Any]) -> list[dict[str, Any]]:
    """`dataset_info` of a card: one object, or a list with one for each configuration."""
    infos = card.get("dataset_info")
    return [
        each for each in (infos if isinstance(infos, list) else [infos]) if isinstance(each, dict)
    ]


def _objects(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)
