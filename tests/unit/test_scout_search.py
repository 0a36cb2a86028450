"""A category searched on a real Hub over loopback: what is found, ranked, cached, and missed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from aerie.config import ROOT
from aerie.files import read_json
from aerie.scout.categories import CATEGORIES
from aerie.scout.search import known_ids, scout
from tests.loopback_hub import LoopbackHub
from tests.unit.scout_fixtures import CODING, asked, parquet, populate, scouting


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    # `make test` sets offline mode for everything else; this Hub is on loopback.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with LoopbackHub() as server:
        yield server


def by_id(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in content["candidates"]}


def test_every_kind_of_dataset_is_described(hub: LoopbackHub, tmp_path: Path) -> None:
    populate(hub)
    mix = {"nvidia/OpenCodeInstruct": "opencode"}
    content = scout(scouting(hub, tmp_path / "cache", mix=mix), tmp_path / "out.json")
    assert read_json(tmp_path / "out.json") == content
    assert content["status"] == "searched"
    found = by_id(content)

    whole = found["nvidia/OpenCodeInstruct"]
    assert (whole["rows"], whole["rows_from"]) == (5_000_000, "card")
    assert whole["columns"] == ["id", "input", "output"]
    assert whole["licence"] == "cc-by-4.0"
    assert whole["format"] == "parquet"
    assert whole["bytes_from"] == "files"
    size = len(parquet(["id", "input", "output"], 50))
    assert whole["bytes"] == size
    assert whole["adapter"]["kind"] == "exact"
    assert whole["in_mix"] == "opencode"
    assert whole["revision"] == hub.repositories["nvidia/OpenCodeInstruct"].branches["main"]
    assert whole["last_change"].startswith("2026-01-02")
    assert whole["unverified"] == []

    gated = found["gates/coding-behind-terms"]
    assert gated["gated"] == "auto"
    assert gated["columns"] == [] and gated["columns_from"] == "unknown"
    assert (gated["rows"], gated["rows_from"]) == (316_228, "tag")
    assert any("401" in doubt for doubt in gated["unverified"])

    bare = found["bare/coding-without-a-word"]
    assert bare["rows"] is None and bare["bytes"] is None
    assert (bare["format"], bare["licence"]) == ("unknown", "unknown")
    assert {doubt.split(":")[0] for doubt in bare["unverified"]} == {
        "licence", "rows", "columns", "bytes",
    }  # fmt: skip

    lines = found["lines/coding-rows"]
    assert (lines["columns"], lines["columns_from"]) == (["instruction", "response"], "first row")
    assert lines["adapter"]["adapter"] == "instruction"

    shards = found["shards/coding-shards"]
    assert (shards["columns"], shards["columns_from"]) == (["prompt", "answer"], "footer")
    assert (shards["rows"], shards["rows_from"]) == (300, "estimate")
    assert shards["licence"] == "cc-by-nc-4.0"


def test_a_footer_is_read_by_ranges(hub: LoopbackHub, tmp_path: Path) -> None:
    content = parquet([f"prompt{n}" for n in range(4)], 200_000)
    hub.add("big/coding", {"train.parquet": content})
    found = by_id(scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json"))
    assert (found["big/coding"]["rows"], found["big/coding"]["rows_from"]) == (200_000, "footer")
    assert len(content) > 2_000_000
    assert hub.sent("/cdn/") <= 1 << 17


def test_candidates_are_ranked_and_bounded(hub: LoopbackHub, tmp_path: Path) -> None:
    populate(hub, fillers=40)
    content = scout(scouting(hub, tmp_path / "cache", candidates=20), tmp_path / "out.json")
    values = [each["score"]["value"] for each in content["candidates"]]
    assert values == sorted(values, reverse=True)
    assert len(values) == 20
    assert content["listed"] == 45
    best = content["candidates"][0]
    assert best["id"] == "nvidia/OpenCodeInstruct"
    assert (
        best["found_by"][0] == "id nvidia/OpenCodeInstruct"
        and 'name "opencode"' in best["found_by"]
    )
    assert set(best["score"]["criteria"]) == {"diversity", "quality", "match"}
    assert any("5,000,000 rows (card)" in reason for reason in best["score"]["reasons"])
    # What is known by its id is looked into however few like it.
    hub.repositories["nvidia/OpenCodeInstruct"].info |= {"downloads": 0, "likes": 0, "tags": []}
    again = scout(scouting(hub, tmp_path / "cache", candidates=15), tmp_path / "out.json")
    assert "nvidia/OpenCodeInstruct" in by_id(again)


def test_pages_are_followed_up_to_the_limit(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with LoopbackHub(page=10) as hub:
        populate(hub, fillers=40)
        content = scout(scouting(hub, tmp_path / "cache", listed=25), tmp_path / "out.json")
    word = next(each for each in content["searches"] if each["search"] == 'name "code-instruct"')
    assert word["found"] == 25


def test_an_empty_category_is_a_finding(hub: LoopbackHub, tmp_path: Path) -> None:
    content = scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json")
    assert content["status"] == "searched"
    assert content["candidates"] == []
    for each in content["searches"]:
        assert each["found"] == 0
        assert any(each["search"] in finding for finding in content["findings"])
    assert "the category is empty" in content["findings"][-1]
    assert hub.url in content["findings"][-1]
    assert {f"id {id}" for id in known_ids(CODING)} < {
        each["search"] for each in content["searches"]
    }


def test_one_search_that_fails_costs_no_other(hub: LoopbackHub, tmp_path: Path) -> None:
    populate(hub)
    hub.fail(1, status=400, match="^/api/datasets$")
    content = scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json")
    assert content["status"] == "searched"
    assert content["searches"][0]["failure"] == "HTTP 400"
    assert "failed: HTTP 400" in content["findings"][0]
    # A search by name found what the failed one was for.
    assert "nvidia/OpenCodeInstruct" in by_id(content)


def test_a_category_whose_searches_all_fail_is_failed(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.fail(1000, status=403, match="^/api/datasets$")
    content = scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json")
    assert content["status"] == "failed"
    assert content["failure"]["saw"] == "HTTP 403"
    assert "make scout" in content["failure"]["remedy"]


def test_a_dataset_that_cannot_be_read_is_a_finding(hub: LoopbackHub, tmp_path: Path) -> None:
    populate(hub)
    hub.fail(1000, status=503, match="^/api/datasets/lines/")
    content = scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json")
    assert content["status"] == "searched"
    found = by_id(content)["lines/coding-rows"]
    assert found["rows_from"] == "unknown"
    assert any("lines/coding-rows" in each and "503" in each for each in content["findings"])
    # The fault is over: what failed is asked for again, and nothing else is.
    hub.faults.clear()
    hub.requests.clear()
    content = scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json")
    assert by_id(content)["lines/coding-rows"]["columns_from"] == "first row"
    assert all("lines/coding-rows" in path or "/cdn/" in path for path in asked(hub))


def test_what_passes_by_itself_is_tried_again(hub: LoopbackHub, tmp_path: Path) -> None:
    populate(hub)
    hub.fail(1, status=429, match="^/api/datasets$", retry_after="0")
    hub.fail(1, status=429, match="^/api/datasets/shards/")
    hub.fault("drop", match="^/datasets/shards/.*/resolve/")
    hub.fault("cut", match="^/cdn/")
    content = scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json")
    assert by_id(content)["shards/coding-shards"]["columns_from"] == "footer"
    assert not [each for each in content["findings"] if "shards" in each]
    assert not any(fault.left for fault in hub.faults)


def dropped(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, skip: int) -> None:
    """Every listing after `skip` gets no answer; the client's waits between its tries are none."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.fault("drop", match="^/api/datasets$", left=1000, skip=skip)


def test_a_hub_that_is_not_there_fails_the_category_at_once(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped(hub, monkeypatch, skip=0)
    content = scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json")
    assert content["status"] == "failed"
    assert "HF_ENDPOINT" in content["failure"]["remedy"]
    assert len(content["searches"]) == 1
    assert "nothing else was searched" in content["findings"][-1]


def test_a_hub_that_goes_away_leaves_what_was_found(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(hub)
    dropped(hub, monkeypatch, skip=2)
    content = scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json")
    assert content["status"] == "searched"
    assert "nvidia/OpenCodeInstruct" in by_id(content)
    assert len(content["searches"]) == 3
    assert "nothing else was searched" in content["findings"][-1]


def test_details_are_asked_for_once_a_commit(hub: LoopbackHub, tmp_path: Path) -> None:
    populate(hub)
    cache = tmp_path / "cache"
    first = scout(scouting(hub, cache), tmp_path / "out.json")
    assert asked(hub)
    hub.requests.clear()
    assert scout(scouting(hub, cache), tmp_path / "out.json") == first
    assert hub.requests and not asked(hub)

    # Popularity is of the listing: it is seen without another look at the dataset.
    hub.repositories["lines/coding-rows"].info["downloads"] = 77
    found = by_id(scout(scouting(hub, cache), tmp_path / "out.json"))
    assert found["lines/coding-rows"]["downloads"] == 77
    assert not asked(hub)

    shards = hub.repositories["shards/coding-shards"]
    shards.commit({"data/0.parquet": parquet(["question"], 7)})
    found = by_id(scout(scouting(hub, cache), tmp_path / "out.json"))
    assert found["shards/coding-shards"]["rows"] == 7
    assert found["shards/coding-shards"]["columns"] == ["question"]
    assert all("shards/coding-shards" in path or "/cdn/" in path for path in asked(hub))


def test_accepted_terms_are_noticed(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(hub)
    cache = tmp_path / "cache"
    scout(scouting(hub, cache), tmp_path / "out.json")
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    found = by_id(scout(scouting(hub, cache), tmp_path / "out.json"))
    assert found["gates/coding-behind-terms"]["columns"] == ["messages"]
    assert found["gates/coding-behind-terms"]["rows_from"] == "footer"
    written = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*.json"))
    assert "hf_reader" not in written


@pytest.mark.parametrize("content", [b"{not json", b"[]", b'{"artifact": "scout", "contract": 0}'])
def test_a_damaged_cache_is_asked_for_again(
    hub: LoopbackHub, tmp_path: Path, content: bytes
) -> None:
    populate(hub)
    cache = tmp_path / "cache"
    first = scout(scouting(hub, cache), tmp_path / "out.json")
    for path in cache.rglob("*.json"):
        path.write_bytes(content)
    assert scout(scouting(hub, cache), tmp_path / "out.json") == first


def test_files_of_strangers_cannot_stop_it(hub: LoopbackHub, tmp_path: Path) -> None:
    good = parquet(["prompt"], 10)
    hub.add("bad/coding-truncated", {"train.parquet": good[:-20]})
    hub.add("bad/coding-empty", {"train.parquet": b""})
    hub.add("bad/coding-binary", {"rows.jsonl": b"\xff\xfe\x00\x01" * 100})
    hub.add("bad/coding-scalar", {"rows.json": b"3"})
    hub.add("bad/coding-packed", {"rows.jsonl.gz": b"\x1f\x8b"})
    odd = {
        "license": ["mit", None],
        "dataset_info": [3, {"features": "x", "splits": {}}],
        "configs": 7,
    }
    hub.add("bad/coding-card", {"train.parquet": good}, info={"cardData": odd})
    content = scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json")
    found = by_id(content)
    assert len(found) == 6
    assert "is damaged" in " ".join(found["bad/coding-truncated"]["unverified"])
    assert "compressed" in " ".join(found["bad/coding-packed"]["unverified"])
    assert found["bad/coding-card"]["licence"] == "mit"
    assert found["bad/coding-card"]["columns"] == ["prompt"]
    assert found["bad/coding-scalar"]["columns"] == []


def test_configurations_are_not_added_up(hub: LoopbackHub, tmp_path: Path) -> None:
    def info(name: str, rows: int) -> dict[str, Any]:
        splits = [{"name": "train", "num_examples": rows}]
        return {"config_name": name, "features": [{"name": "messages"}], "splits": splits}

    cards = {"dataset_info": [info("all", 300), info("code", 100), info("math", 200)]}
    hub.add("many/coding", {}, info={"cardData": cards})
    found = by_id(scout(scouting(hub, tmp_path / "cache"), tmp_path / "out.json"))["many/coding"]
    assert found["rows"] == 300
    assert found["configurations"] == {"all": 300, "code": 100, "math": 200}


def test_known_ids_are_exact(hub: LoopbackHub, tmp_path: Path) -> None:
    """A search for an id also names its derivatives; they are not what was looked up."""
    hub.add("nvidia/OpenCodeInstruct-copy", {"a.md": b""})
    only = replace(CODING, searches=(), tags=())
    content = scout(scouting(hub, tmp_path / "cache", only), tmp_path / "out.json")
    assert content["candidates"] == []
    assert any(
        "id nvidia/OpenCodeInstruct on" in each and "found nothing" in each
        for each in content["findings"]
    )


@pytest.mark.parametrize("key", CATEGORIES)
def test_categories_ask_enough(key: str) -> None:
    category = CATEGORIES[key]
    assert len(category.searches) + len(category.tags) >= 5
    assert len(set(category.searches)) == len(category.searches)
    assert category.terms and category.purpose


def script(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/scout.py", "--category", "coding_instructions"]
    command += ["--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out.json")]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_offline_says_so(tmp_path: Path) -> None:
    done = script(tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "HF_HUB_OFFLINE" in done.stderr and "remedy" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_the_script_asks_the_hub_of_the_environment(hub: LoopbackHub, tmp_path: Path) -> None:
    populate(hub)
    done = script(tmp_path, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0")
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "out.json")["endpoint"] == hub.url
    assert "coding instructions: searches" in done.stderr
    assert "5 candidates of 5 listed" in done.stderr
