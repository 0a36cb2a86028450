"""Every JSON artifact of a build is what its schema says, and none of them names a machine."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.workflow.conftest import ROOT, Checkout

pytestmark = pytest.mark.workflow

SCHEMAS = {"bench": "bench", "overlap": "overlap", "states": "states_index"}
OTHERS = {"lock.json", "selection.json"}


def schema(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / f"schemas/{name}.schema.json").read_text("utf-8"))
    return content


def artifacts(built: Checkout) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in sorted(built.work.rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and "artifact" in content and path.name not in OTHERS:
            found.append((path, content))
    return found


def test_artifacts_match_their_schemas(built: Checkout) -> None:
    kinds = set()
    for path, content in artifacts(built):
        kinds.add(content["artifact"])
        name = SCHEMAS.get(content["artifact"], "sidecar")
        try:
            jsonschema.validate(content, schema(name))
        except jsonschema.ValidationError as error:
            pytest.fail(f"{path}: {error.message}")
    expected = {
        "target",
        "candidates",
        "prompts",
        "overlap",
        "responses",
        "counts",
        "map",
        "states",
        "manifest",
        "draft",
    }
    assert kinds == {*expected, "bench"}


def test_sidecars_hold_no_path_of_this_machine(built: Checkout) -> None:
    for path, content in artifacts(built):
        if content["artifact"] != "bench":
            assert str(built.folder) not in path.read_text(encoding="utf-8"), path


def test_every_job_has_a_log_and_a_benchmark(built: Checkout) -> None:
    logs = {path.relative_to(built.work / "logs") for path in built.work.rglob("*.log")}
    timed = {path.relative_to(built.work / "benchmarks") for path in built.work.rglob("*.tsv")}
    assert {path.with_suffix("") for path in logs} == {path.with_suffix("") for path in timed}
    assert len(logs) > 15
