"""Renders the report: one HTML page that needs no other file."""

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from aerie.files import replacing
from aerie.report import breakeven, groups, inventory, results, studies, training
from aerie.report.collect import Inputs, Material, collect
from aerie.report.text import DASH, count, dig, plural
from aerie.report.verdict import key_numbers, verdict

_DIGEST = re.compile(r"[0-9a-f]{32,64}")
_FOLDER = Path(__file__).parent
# Control characters have no meaning in HTML and NUL ends parsing in some readers.
_CONTROLS = {code: "�" for code in (*range(32), 127) if chr(code) not in "\t\n"}


def write_report(inputs: Inputs, out: Path) -> None:
    """Read the artifacts and write the page to `out`.

    Raises:
        ContractError: a file that was named is missing or damaged.
    """
    page = render(collect(inputs, out))
    with replacing(out) as scratch:
        # A lone surrogate in a model's text must not keep the report from being written.
        scratch.write_bytes(page.encode("utf-8", "replace"))


def render(material: Material) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: DASH if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["digest"] = lambda value: bool(_DIGEST.fullmatch(str(value)))
    page = environment.get_template("page.html.j2").render(_context(material))
    return page.translate(_CONTROLS)


def _context(material: Material) -> dict[str, Any]:
    first = material.benches[0]
    target = target_name(material)
    return {
        "style": Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        "target": target,
        "subtitle": _subtitle(first.content),
        "verdict": verdict(first.content),
        "numbers": key_numbers(first.content),
        "round": results.round_figure(first),
        "benches": results.benches_table(material.benches) if len(material.benches) > 1 else None,
        "source": first.source,
        "sections": [
            results.domains(material),
            results.positions(material),
            groups.groups(material),
            breakeven.break_even(material),
            studies.scaling(material),
            studies.map_study(material),
            studies.mix_study(material),
            training.training(material),
            training.coverage(material),
            inventory.data(material),
            inventory.licences(material),
            inventory.models(material),
            inventory.gates(material),
            inventory.lock(material),
        ],
        "glossary": inventory.glossary(material),
    }


def target_name(material: Material) -> str:
    """What the target is called, or just "the target"."""
    name = dig(material.target.content, "provenance", "name") if material.target else None
    return name if isinstance(name, str) and name else "the target"


def _subtitle(bench: Any) -> str:
    parts = [f"run {dig(bench, 'run') or DASH}", f"suite {dig(bench, 'suite') or DASH}"]
    parts.append(plural(count(bench, "prompts"), "prompt"))
    parts.append(f"k = {count(bench, 'k') or DASH}")
    parts.append(f"{dig(bench, 'engine') or DASH} engine")
    return " · ".join(parts)
