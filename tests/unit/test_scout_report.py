"""The scout's report: the same content for people and machines, and nothing passed over."""

import json
import re
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import jsonschema
import pytest

from aerie.config import ROOT
from aerie.errors import ContractError, DataError
from aerie.files import read_json, write_json
from aerie.scout.categories import CATEGORIES, SUGGESTED
from aerie.scout.report import collect, write_report
from aerie.scout.search import scout
from aerie.verify import verify
from tests.loopback_hub import LoopbackHub
from tests.unit.scout_fixtures import parquet, populate, scouting

FAILED = "long_form_writing"
MIX = {"nvidia/OpenCodeInstruct": "opencode", "gone/from-the-hub": "lost"}


@pytest.fixture(scope="module")
def scouted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten categories: one rich, one failed, the others thin or empty."""
    folder = tmp_path_factory.mktemp("scout")
    patch = pytest.MonkeyPatch()
    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with LoopbackHub() as hub:
        populate(hub, fillers=20)
        hub.add(
            "Agent-Ark/Toucan-1.5M",
            {"Kimi-K2/train.parquet": parquet(["uuid", "messages"], 3)},
            info={"cardData": {"license": "apache-2.0"}},
        )
        hub.add(
            "strange/kimi-set",
            {"a.parquet": parquet(["pipe|column", "<b>", "[link](x)"], 1)},
            info={"cardData": {"license": "see | <b>my</b>\n# page"}},
        )
        for key, category in CATEGORIES.items():
            hub.faults.clear()
            if key == FAILED:
                hub.fail(1000, status=403, match="^/api/datasets$")
            job = scouting(hub, folder / "cache", category, mix=MIX)
            scout(job, folder / f"{key}.json")
        hub.faults.clear()
        few = scouting(hub, folder / "cache", candidates=15)
        scout(few, folder / "few" / "coding_instructions.json")
    patch.undo()
    return folder


def files(folder: Path) -> list[Path]:
    return [folder / f"{key}.json" for key in CATEGORIES]


@pytest.fixture
def report(scouted: Path, tmp_path: Path) -> tuple[dict[str, Any], str]:
    content = write_report(files(scouted), tmp_path / "report.json", tmp_path / "report.md")
    assert read_json(tmp_path / "report.json") == content
    return content, (tmp_path / "report.md").read_text(encoding="utf-8")


def test_it_holds_every_candidate(report: tuple[dict[str, Any], str]) -> None:
    content, page = report
    assert [each["category"]["key"] for each in content["categories"]] == list(CATEGORIES)
    coding = content["categories"][0]
    assert len(coding["candidates"]) == 25
    for candidate in coding["candidates"]:
        line = next(line for line in page.splitlines() if f"[{candidate['id']}]" in line)
        assert candidate["url"] in line
    row = next(line for line in page.splitlines() if line.startswith("| 0.90 | [nvidia/Open"))
    for value in ("5,000,000", "parquet", "cc-by-4.0", "open", "2026-01-02", "20,000", "opencode"):
        assert f"| {value} |" in row
    assert "not looked into" not in page


def test_it_says_how_much_it_left_out(scouted: Path, tmp_path: Path) -> None:
    path = scouted / "few" / "coding_instructions.json"
    content = write_report([path], tmp_path / "r.json", tmp_path / "r.md")
    assert len(content["categories"][0]["candidates"]) == 15
    assert "10 more were listed and not looked into" in (tmp_path / "r.md").read_text("utf-8")


def test_it_says_which_suggestions_were_found(report: tuple[dict[str, Any], str]) -> None:
    content, page = report
    found = {each["number"]: each["found"] for each in content["suggested"]}
    assert len(found) == len(SUGGESTED) == 10
    assert found[1] == ["nvidia/OpenCodeInstruct"]
    assert found[3] == ["Agent-Ark/Toucan-1.5M"]
    assert [number for number, ids in found.items() if ids] == [1, 3]
    assert "✓ Agent-Ark/Toucan-1.5M | found |" in page
    assert "✗ allenai/WildChat-1M | not found |" in page
    assert "2 of the 10 suggested entries were found" in page


def test_it_names_the_failed_category(report: tuple[dict[str, Any], str]) -> None:
    content, page = report
    assert content["failed"] == [FAILED]
    assert "**long-form writing could not be searched**" in page
    assert "(saw: HTTP 403)" in page
    assert "| failed |" in page


def test_it_says_what_the_mix_has(report: tuple[dict[str, Any], str]) -> None:
    content, page = report
    entries = {each["entry"]: each["categories"] for each in content["mix"]}
    assert entries == {"opencode": ["coding_instructions"], "lost": []}
    assert "| lost | gone/from-the-hub | not found: look at its page |" in page


def test_it_says_what_is_not_verified(report: tuple[dict[str, Any], str]) -> None:
    content, page = report
    assert content["licences"]["unknown"] == ["bare/coding-without-a-word", "lines/coding-rows"]
    assert content["gated"] == ["gates/coding-behind-terms"]
    assert "Gated: gates/coding-behind-terms." in page
    unverified = page.split("## Not verified")[1]
    assert "- bare/coding-without-a-word: licence: none is stated; rows: unknown" in unverified
    assert "nvidia/OpenCodeInstruct" not in unverified


def test_it_says_what_was_searched_in_vain(report: tuple[dict[str, Any], str]) -> None:
    _, page = report
    chat = page.split("\n## general chat")[1].split("\n## ")[0]
    assert "the category is empty" in chat
    assert 'name "wildchat"' in chat and "id allenai/WildChat-1M" in chat


def test_strangers_cannot_break_its_tables(report: tuple[dict[str, Any], str]) -> None:
    _, page = report
    assert "<b>" not in page
    for block in re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(cells) == 1, block


def test_artifacts_match_their_schema(scouted: Path, report: tuple[dict[str, Any], str]) -> None:
    schema = json.loads((ROOT / "schemas/scout.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    for content in [report[0], *map(read_json, files(scouted))]:
        validator.validate(content)
    spoilt = {**report[0], "failed": "none"}
    assert not validator.is_valid(spoilt)


def test_it_is_the_same_each_time(scouted: Path, tmp_path: Path) -> None:
    write_report(files(scouted), tmp_path / "a.json", tmp_path / "a.md")
    write_report(reversed(files(scouted)), tmp_path / "b.json", tmp_path / "b.md")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.md").read_bytes() == (tmp_path / "b.md").read_bytes()


def test_verify_knows_it(scouted: Path) -> None:
    verdict = verify(scouted)
    assert verdict.findings == []
    assert verdict.checked["scout"] > 10


def test_ten_failures_are_an_error(scouted: Path, tmp_path: Path) -> None:
    failed = read_json(scouted / f"{FAILED}.json")
    write_json(tmp_path / "one.json", failed)
    with pytest.raises(DataError, match=r"(?s)no category could be searched.*HTTP 403.*remedy"):
        write_report([tmp_path / "one.json"], tmp_path / "r.json", tmp_path / "r.md")
    assert not list(tmp_path.glob("r.*"))


def test_a_file_that_is_no_category_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "odd.json", {"artifact": "bench"})
    with pytest.raises(ContractError, match=r"odd\.json is not a scouted category"):
        collect([tmp_path / "odd.json"])
