"""Selection: stable parts, prefix growth, datasets that do not disturb each other."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerie.bench.suite import read_suite
from aerie.contracts.prompts import Prompt, Reason, read_prompts, read_rejects
from aerie.contracts.sidecar import damage, read_sidecar
from aerie.errors import ContractError, GateError
from aerie.files import digest_bytes, read_json
from aerie.prompts.select import Settings, mode_of, read_selection, replacing_folder, select
from tests.unit.prompts_fixtures import make_candidates

quick = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
# Texts that have nothing in common: near duplicates have tests of their own.
texts = st.sets(st.integers(0, 40).map(lambda n: digest_bytes(bytes([n]))), min_size=1)


def parts(folder: Path) -> dict[str, bytes]:
    """The bytes of each part and of its sidecar."""
    return {
        file.name: file.read_bytes()
        for name in read_selection(folder)
        for file in (folder / f"{name}.parquet", folder / f"{name}.json")
    }


def chosen(folder: Path) -> list[Prompt]:
    """Every prompt of a selection."""
    return [
        row for name in read_selection(folder) for row in read_prompts(folder / f"{name}.parquet")
    ]


def try_select(take: int, size: int, candidates: Path, earlier: list[Path], out: Path) -> bool:
    try:
        select(Settings(take, size), candidates, earlier, out)
    except GateError:
        return False
    return True


@quick
@given(texts, texts, st.integers(1, 30), st.integers(1, 30), st.integers(1, 7))
def test_a_selection_is_a_prefix_of_a_larger_one(
    tmp_path_factory: pytest.TempPathFactory,
    first: set[str],
    own: set[str],
    small: int,
    more: int,
    size: int,
) -> None:
    folder = tmp_path_factory.mktemp("selection")
    earlier = [make_candidates(folder / "first", "first", first)]
    candidates = make_candidates(folder / "own", "own", own)
    if not try_select(small, size, candidates, earlier, folder / "small"):
        assert own <= first
        return
    select(Settings(small + more, size), candidates, earlier, folder / "large")
    short, long = read_selection(folder / "small"), read_selection(folder / "large")
    assert long[: len(short)] == short
    assert parts(folder / "small").items() <= parts(folder / "large").items()
    fewer, more_ = (read_rejects(folder / name / "rejects.parquet") for name in ("small", "large"))
    assert more_[: len(fewer)] == fewer


@quick
@given(texts, texts, st.integers(1, 30), st.integers(1, 7))
def test_all_rows_are_accounted_for_and_duplicates_leave_their_own_part_alone(
    tmp_path_factory: pytest.TempPathFactory, first: set[str], own: set[str], take: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("selection")
    earlier = [make_candidates(folder / "first", "first", first)]
    candidates = make_candidates(folder / "own", "own", own)
    if not try_select(take, size, candidates, earlier, folder / "out"):
        return
    every = read_prompts(folder / "own/candidates.parquet")
    place = {prompt.key: number // size for number, prompt in enumerate(every)}
    selected = []
    for name in read_selection(folder / "out"):
        assert not damage(folder / f"out/{name}.json")
        rows = read_prompts(folder / f"out/{name}.parquet")
        assert (
            len(rows) == read_sidecar(folder / f"out/{name}.json", "prompts")["counts"]["rows"] > 0
        )
        assert all(row.part == int(name) == place[row.key] for row in rows)
        selected += rows
    selection = json.loads((folder / "out/selection.json").read_text())
    rejects = read_rejects(folder / "out/rejects.parquet")
    assert {row.turns[0] for row in selected}.isdisjoint(first)
    # Parts that are not taken are not looked at: their rows are surplus, whatever they repeat.
    assert {reject.text for reject in rejects} <= own & first
    if selection["surplus"] == 0:
        assert {reject.text for reject in rejects} == own & first
    assert selection["rows"] == len(own)
    assert selection["rows"] == len(selected) + selection["surplus"] + len(rejects)
    assert len(selected) >= min(take, len(own - first))


@quick
@given(texts, texts, st.integers(1, 20), st.integers(1, 30), st.integers(0, 12), st.integers(1, 7))
def test_what_is_held_out_is_never_selected_whatever_the_take(
    tmp_path_factory: pytest.TempPathFactory,
    first: set[str],
    own: set[str],
    take: int,
    more: int,
    held_out: int,
    size: int,
) -> None:
    folder = tmp_path_factory.mktemp("selection")
    earlier = make_candidates(folder / "first", "first", first)
    candidates = make_candidates(folder / "own", "own", own)
    suites, selected = [], []
    for number, wanted in enumerate((take, take + more)):
        out = folder / str(number)
        settings_ = Settings(wanted, size, held_out=held_out)
        try:
            select(settings_, candidates, [earlier], out)
        except GateError:
            assert len(own - first) <= held_out
            return
        suite = out / "heldout.jsonl"
        suites.append(suite.read_text(encoding="utf-8") if held_out else "")
        rows = [
            row for name in read_selection(out) for row in read_prompts(out / f"{name}.parquet")
        ]
        selected.append({row.turns[0] for row in rows})
        selection = json.loads((out / "selection.json").read_text())
        assert selection["held_out"] == min(held_out, len(own - first))
        assert len(own) == selection["rows"] == sum(
            selection[name] for name in ("selected", "held_out", "surplus", "rejected")
        )  # fmt: skip
    assert suites[0] == suites[1]
    held = {json.loads(line)["turns"][0] for line in suites[0].splitlines()}
    assert len(held) == min(held_out, len(own - first))
    assert selected[0] <= selected[1]
    assert held.isdisjoint(selected[1] | first)
    # A later dataset that has them too does not train on them.
    later = make_candidates(folder / "later", "later", held | {"of its own"})
    select(Settings(50, size), later, [earlier, candidates], folder / "after")
    assert [row.turns[0] for row in chosen(folder / "after")] == ["of its own"]


def test_holding_out_more_keeps_what_was_held_out_and_moves_no_part(tmp_path: Path) -> None:
    candidates = make_candidates(tmp_path / "a", "a", [digest_bytes(bytes([n])) for n in range(40)])
    found = []
    for held_out in (3, 6):
        out = tmp_path / str(held_out)
        select(Settings(20, 5, held_out=held_out), candidates, [], out)
        rows = [
            row for name in read_selection(out) for row in read_prompts(out / f"{name}.parquet")
        ]
        suite = read_suite(out / "heldout.jsonl")
        assert "heldout.jsonl" in read_json(out / "selection.json")["files"]
        found.append((suite, {row.key: row.part for row in rows}))
    (few, before), (many, after) = found
    assert many[: len(few)] == few
    assert (len(few), len(many)) == (3, 6)
    assert {prompt.domain for prompt in many} == {"a"}
    assert all(after.get(key, part) == part for key, part in before.items())


@quick
@given(texts, texts, st.integers(1, 20), st.integers(1, 20))
def test_one_take_changes_no_other_dataset(
    tmp_path_factory: pytest.TempPathFactory, first: set[str], own: set[str], one: int, two: int
) -> None:
    folder = tmp_path_factory.mktemp("selection")
    earlier = make_candidates(folder / "first", "first", first)
    candidates = make_candidates(folder / "own", "own", own)
    contents = []
    for take in (one, two):
        # The first dataset's selection is made anew; the second one's must not see it.
        select(Settings(take, 3), earlier, [], folder / "first-out")
        if not try_select(5, 3, candidates, [earlier], folder / "out"):
            return
        contents.append({file.name: file.read_bytes() for file in (folder / "out").iterdir()})
    assert contents[0] == contents[1]


def test_contents_of_a_selection(tmp_path: Path) -> None:
    one, two, near = "How do I read a file?", "What is a heap?", "Why is the sky above us so blue?"
    first = make_candidates(tmp_path / "a", "a", [one, two])
    second = make_candidates(tmp_path / "b", "b", [two.upper(), near])
    others = ["Name a prime.", "Who wrote Emma?", "Sort these."]
    own = make_candidates(tmp_path / "own", "own", [one, two, f"{near} ?", *others])
    select(Settings(3, 6), own, [first, second], tmp_path / "out")
    assert read_selection(tmp_path / "out") == ["000"]
    rejects = read_rejects(tmp_path / "out/rejects.parquet")
    assert {(reject.text, reject.reason, reject.detail.split("-")[0]) for reject in rejects} == {
        (one, Reason.DUPLICATE, "same text as a"),
        (two, Reason.DUPLICATE, "same text as a"),
        (f"{near} ?", Reason.NEAR_DUPLICATE, "nearly the text of b"),
    }
    selection = json.loads((tmp_path / "out/selection.json").read_text())
    assert selection["duplicates"] == {"a": 2} and selection["near_duplicates"] == {"b": 1}
    assert read_json(tmp_path / "out/licence.json") == {
        "adapter": "generic/messages",
        "category": "own data",
        "dataset": "own",
        "id": "generic/messages",
        "licence": "unknown",
        "attribution": "",
        "share_alike": False,
        "gated": False,
        "revision": None,
        "rows": 3,
    }


def test_a_larger_share_of_thinking_changes_no_mode_back() -> None:
    keys = [digest_bytes(bytes([number])) for number in range(200)]
    thinking = [
        {key for key in keys if mode_of(0, key, share) == "thinking"} for share in (0, 0.3, 0.7, 1)
    ]
    assert not thinking[0] and thinking[3] == set(keys)
    assert thinking[1] < thinking[2]
    assert 30 < len(thinking[1]) < 90
    assert thinking[1] != {key for key in keys if mode_of(1, key, 0.3) == "thinking"}


def test_modes_of_a_selection(tmp_path: Path) -> None:
    own = make_candidates(tmp_path / "own", "own", (digest_bytes(bytes([n])) for n in range(40)))
    select(Settings(40, 50, thinking_share=0.5), own, [], tmp_path / "out")
    prompts = read_prompts(tmp_path / "out/000.parquet")
    counted = dict(Counter(prompt.mode for prompt in prompts))
    assert counted.keys() == {"thinking", "instant"}
    assert json.loads((tmp_path / "out/selection.json").read_text())["modes"] == counted
    assert read_sidecar(tmp_path / "out/000.json", "prompts")["counts"]["modes"] == counted


def test_too_few_candidates_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    candidates = make_candidates(tmp_path / "own", "own", ["Name a prime.", "Why so?"])
    select(Settings(3, 1), candidates, [], tmp_path / "out")
    assert "own: 3 prompts are wanted and only 2 exist" in caplog.text
    assert read_selection(tmp_path / "out") == ["000", "001"]


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    first = make_candidates(tmp_path / "a", "a", ["x 1"])
    own = make_candidates(tmp_path / "own", "own", ["x 1"])
    with pytest.raises(GateError, match="no prompt of own is left"):
        select(Settings(1, 1), own, [first], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    texts = [digest_bytes(bytes([n])) for n in range(9)]
    candidates = make_candidates(tmp_path / "own", "own", texts)
    select(Settings(9, 3), candidates, [], out)
    before = {file.name for file in out.iterdir()}

    def fail() -> None:
        with replacing_folder(out) as scratch:
            (scratch / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert {file.name for file in out.iterdir()} == before
    # What a killed run leaves is swept by the next.
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp/stale").touch()
    select(Settings(1, 3), candidates, [], out)
    assert read_selection(out) == ["000"]
    assert not (out / "stale").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "own"}


def test_reading_no_selection(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="is missing"):
        read_selection(tmp_path)
    (tmp_path / "selection.json").write_text('{"parts": 3}')
    with pytest.raises(ContractError, match="does not list the parts"):
        read_selection(tmp_path)
