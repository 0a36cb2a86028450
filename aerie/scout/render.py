"""The report as a Markdown page."""

import re
from typing import Any

from aerie.scout.categories import CATEGORIES

_EXPLAINED = 3
_GATES = {"no": "open", "auto": "accept terms", "manual": "ask authors"}
_ROWS = {"card": "", "footer": "", "estimate": "~", "tag": "~"}


def markdown(report: dict[str, Any]) -> str:
    """The page: summary, suggested ten, categories, licences, findings, what is not verified."""
    blocks = [
        "# What the Hub holds",
        _summary(report),
        "## At a glance",
        _glance(report),
        "## The ten that are suggested for Kimi-K2.5",
        _suggested(report),
        "## In the mix already",
        _mix(report),
    ]
    for category in report["categories"]:
        blocks += _category(category)
    blocks += [
        "## Licences and access",
        _licences(report),
        "## Not verified",
        _unverified(report),
    ]
    return "\n\n".join(blocks) + "\n"


def _summary(report: dict[str, Any]) -> str:
    suggested = report["suggested"]
    seen = sum(bool(each["found"]) for each in suggested)
    lines = [
        f"{report['datasets']} datasets in {len(report['categories'])} categories, asked of "
        f"{', '.join(report['endpoints'])}. {seen} of the {len(suggested)} suggested entries "
        "were found."
    ]
    for key in report["failed"]:
        lines.append(
            f"**{CATEGORIES[key].name} could not be searched**, so what follows does not cover it: "
            "run `make scout` again."
        )
    weights = ", ".join(f"{name} {value:g}" for name, value in report["weights"].items())
    lines.append(
        f"A score is in [0, 1] and weighs {weights}; `docs/scout.md` defines each. "
        "It orders what a person should look at first; it is no verdict on the data."
    )
    return "\n\n".join(lines)


def _glance(report: dict[str, Any]) -> str:
    rows = []
    for each in report["categories"]:
        best = each["candidates"][0] if each["candidates"] else None
        rows.append(
            [
                f"[{each['category']['name']}](#{_anchor(each['category']['name'])})",
                "failed" if each["status"] == "failed" else str(len(each["searches"])),
                str(each["listed"]),
                str(len(each["candidates"])),
                _link(best) if best else "none",
                f"{best['score']['value']:.2f}" if best else "",
            ]
        )
    return _table(
        ["category", "searches", "listed", "looked into", "best", "score"], rows, "lrrrlr"
    )


def _suggested(report: dict[str, Any]) -> str:
    rows = []
    for each in report["suggested"]:
        marks = [f"{'✓' if id in each['found'] else '✗'} {_cell(id)}" for id in each["ids"]]
        if each["found"]:
            verdict = "found"
        else:
            verdict = "not found" if each["searched"] else "not searched: its category failed"
        name = CATEGORIES[each["category"]].name
        rows.append([str(each["number"]), name, "<br>".join(marks), verdict])
    return _table(["#", "category", "datasets", "verdict"], rows, "rlll")


def _mix(report: dict[str, Any]) -> str:
    rows = []
    for each in report["mix"]:
        names = ", ".join(CATEGORIES[key].name for key in each["categories"])
        rows.append([each["entry"], _cell(each["id"]), names or "not found: look at its page"])
    return _table(["entry", "dataset", "found as"], rows) if rows else "The mix is empty."


def _category(content: dict[str, Any]) -> list[str]:
    about = content["category"]
    blocks = [f"## {about['name']}", f"{about['purpose'][:1].upper()}{about['purpose'][1:]}."]
    if content["failure"]:
        failure = content["failure"]
        said = f"{failure['what']} (saw: {failure['saw']}). {failure['remedy']}"
        blocks.append(f"**Failed:** {_cell(said)}.")
    if content["candidates"]:
        blocks += [_candidates(content), _reasons(content)]
    hidden = content["listed"] - len(content["candidates"])
    if hidden > 0:
        blocks.append(
            f"{hidden} more were listed and not looked into: `scout.candidates` says how many."
        )
    empty = [
        each["search"] for each in content["searches"] if not each["found"] and not each["failure"]
    ]
    # The file has a finding for each; a page has a line for all.
    findings = [each for each in content["findings"] if not each.endswith("found nothing")]
    if empty:
        findings.append(
            f"{len(empty)} of {len(content['searches'])} searches found nothing: "
            + ", ".join(empty)
        )
    if findings:
        blocks.append("Findings:\n\n" + "\n".join(f"- {_cell(each)}" for each in findings))
    return blocks


def _candidates(content: dict[str, Any]) -> str:
    heads = [
        "score", "dataset", "rows", "size", "format", "licence", "access", "last change",
        "downloads", "adapter", "mix",
    ]  # fmt: skip
    rows = [
        [
            f"{each['score']['value']:.2f}",
            _link(each),
            _rows(each),
            _bytes(each["bytes"]),
            _cell(each["format"]),
            _cell(each["licence"]),
            _GATES[each["gated"]],
            (each["last_change"] or "unknown")[:10],
            "unknown" if each["downloads"] is None else f"{each['downloads']:,}",
            _adapter(each["adapter"]),
            each["in_mix"] or "",
        ]
        for each in content["candidates"]
    ]
    return _table(heads, rows, "rlrrllllrll")


def _reasons(content: dict[str, Any]) -> str:
    lines = ["Why the first ones come first:"]
    for each in content["candidates"][:_EXPLAINED]:
        criteria = ", ".join(
            f"{name} {value:.2f}" for name, value in each["score"]["criteria"].items()
        )
        columns = ", ".join(each["columns"]) or "unknown"
        reasons = "; ".join(each["score"]["reasons"])
        lines.append(
            f"- **{each['id']}** ({criteria}). Columns: {_cell(columns)}. {_cell(reasons)}."
        )
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _licences(report: dict[str, Any]) -> str:
    table = _table(
        ["licence, as the card states it", "datasets", "which"],
        [[_cell(name), str(len(ids)), _few(ids)] for name, ids in report["licences"].items()],
        "lrl",
    )
    gated = _few(report["gated"]) if report["gated"] else "none"
    return f"{table}\n\nGated: {gated}."


def _unverified(report: dict[str, Any]) -> str:
    said = (
        "No row was judged. Licences, sizes and languages are what the authors state; whether a "
        "dataset repeats its prompts or another one's shows only in `make all`, whose selection "
        "reports duplicates. Below is what is not even stated."
    )
    lines = [
        f"- {_cell(id)}: {_cell('; '.join(doubts))}" for id, doubts in report["unverified"].items()
    ]
    return said + ("\n\n" + "\n".join(lines) if lines else "")


def _few(ids: list[str], most: int = 5) -> str:
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(map(_cell, ids[:most])) + more


def _rows(each: dict[str, Any]) -> str:
    if each["rows"] is None:
        return "unknown"
    if each["rows_from"] == "tag":
        return _cell(each["size_tag"])
    several = len(each["configurations"])
    note = f" (largest of {several})" if several > 1 and each["rows_from"] == "card" else ""
    return f"{_ROWS[each['rows_from']]}{each['rows']:,}{note}"


def _bytes(count: int | None) -> str:
    if count is None:
        return "unknown"
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _adapter(fit: dict[str, Any]) -> str:
    if fit["kind"] == "exact":
        return "yes"
    return f"like `{fit['adapter']}`" if fit["kind"] == "family" else fit["kind"]


def _link(each: dict[str, Any]) -> str:
    return f"[{_cell(each['id'])}]({each['url']})"


def _anchor(name: str) -> str:
    return re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-")


def _cell(text: object) -> str:
    """Text of strangers as one harmless line of a table."""
    line = " ".join(str(text).split())
    return line.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def _table(heads: list[str], rows: list[list[str]], align: str = "") -> str:
    rules = ["---:" if side == "r" else "---" for side in align.ljust(len(heads), "l")]
    lines = [heads, rules, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
