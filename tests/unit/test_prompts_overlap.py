"""The overlap of a mix: counts that agree with the selections, and a page."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerie.errors import ContractError
from aerie.files import digest_json
from aerie.prompts.overlap import write_overlap
from aerie.prompts.select import Settings, select
from tests.unit.prompts_fixtures import make_candidates

numbers = st.lists(st.integers(0, 30), min_size=1, max_size=20)


def text(number: int) -> str:
    return digest_json(number)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=numbers, extra=numbers)
def test_shares_are_those_of_the_texts(
    tmp_path_factory: pytest.TempPathFactory, first: list[int], extra: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("overlap")
    # One prompt of its own, so that something is left to select.
    second = [*extra, 99]
    candidates = [
        make_candidates(folder / name, name, map(text, numbers))
        for name, numbers in (("a", first), ("b", second))
    ]
    for place, name in enumerate(("a", "b")):
        select(Settings(99, 4), candidates[place], candidates[:place], folder / f"out-{name}")
    selections = [folder / f"out-{name}/selection.json" for name in ("a", "b")]
    write_overlap(candidates, selections, folder / "overlap.json")
    content = json.loads((folder / "overlap.json").read_text())
    a, b = content["datasets"]
    assert a["fresh_share"] == 1.0 and a["exact"] == {}
    assert b["exact"].get("a", 0) == len(set(first) & set(second))
    assert b["selected"] == len(set(second) - set(first))
    assert content["distinct"] == pytest.approx(len({*first, *second}), abs=0.5)
    page = (folder / "overlap.md").read_text()
    assert f"{content['usable']:,} usable rows" in page
    assert ("| b | a |" in page) == bool(set(first) & set(second))


def test_a_selection_of_another_make_is_refused(tmp_path: Path) -> None:
    candidates = make_candidates(tmp_path / "a", "a", ["Why so?"])
    (tmp_path / "selection.json").write_text('{"dataset": "a"}')
    with pytest.raises(ContractError, match="lacks a field"):
        write_overlap([candidates], [tmp_path / "selection.json"], tmp_path / "overlap.json")
