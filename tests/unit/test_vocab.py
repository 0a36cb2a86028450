"""Counts and the map: what must hold for any data."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.config import VocabSettings
from aerie.contracts.responses import Response, write_responses
from aerie.contracts.sidecar import damage, write_sidecar
from aerie.contracts.vocab import VocabMap, read_counts, read_map, write_counts, write_map
from aerie.errors import ConfigError, ContractError, GateError
from aerie.files import read_json
from aerie.target import Target
from aerie.vocab.counts import count_dataset
from aerie.vocab.map import build_map, coverage, kept_ids, make_map

VOCABULARY = 64
some_counts = st.lists(
    st.integers(0, 5) | st.just(0), min_size=VOCABULARY, max_size=VOCABULARY
).map(lambda values: np.array(values, dtype=np.int64))
some_kept = st.sets(st.integers(0, VOCABULARY - 1), max_size=8)


def response(row: int, output: list[int]) -> Response:
    return Response(f"p{row}.0", "d", 0, "instant", [1, 2], output, "stop", "", "")


def write_part(folder: Path, part: str, outputs: list[list[int]]) -> Path:
    table, sidecar = folder / f"{part}.parquet", folder / f"{part}.json"
    write_responses(table, [response(row, output) for row, output in enumerate(outputs)])
    write_sidecar(sidecar, "responses", [table], {}, {})
    return sidecar


@given(counts=some_counts, kept=some_kept, size=st.integers(8, VOCABULARY))
def test_map_invariants(counts: "np.typing.NDArray[np.int64]", kept: set[int], size: int) -> None:
    vocab = build_map(counts, kept, size)
    ids = vocab.target_ids
    assert len(ids) == size
    assert (np.diff(ids) > 0).all()
    assert kept <= set(ids.tolist())
    assert np.array_equal(np.arange(size) + vocab.d2t, ids)
    assert vocab.t2d.sum() == size
    assert vocab.t2d[ids].all()
    outside = np.flatnonzero(~vocab.t2d)
    inside = [token for token in ids.tolist() if token not in kept]
    if len(outside) and inside:
        # Nothing outside is more frequent than what is inside, and among equals lower ids win.
        worst = max(inside, key=lambda token: (-counts[token], token))
        assert all((-counts[worst], worst) < (-counts[token], token) for token in outside)


@given(parts=st.lists(some_counts, min_size=1, max_size=4), data=st.data())
def test_order_of_the_datasets_does_not_matter(
    parts: list["np.typing.NDArray[np.int64]"], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(parts))
    a = build_map(np.sum(parts, axis=0), {1}, 32)
    b = build_map(np.sum(shuffled, axis=0), {1}, 32)
    assert np.array_equal(a.target_ids, b.target_ids)


@given(counts=some_counts)
def test_a_larger_map_contains_a_smaller_one(counts: "np.typing.NDArray[np.int64]") -> None:
    small, large = (set(build_map(counts, {5}, size).target_ids.tolist()) for size in (16, 48))
    assert small < large


def test_padding_takes_the_lowest_unused_ids() -> None:
    counts = np.zeros(VOCABULARY, dtype=np.int64)
    counts[[10, 20]] = 3
    assert build_map(counts, {30}, 6).target_ids.tolist() == [0, 1, 2, 10, 20, 30]


def test_ties_go_to_the_lower_id() -> None:
    counts = np.ones(VOCABULARY, dtype=np.int64)
    counts[40] = 2
    assert build_map(counts, set(), 3).target_ids.tolist() == [0, 1, 40]


@pytest.mark.parametrize(("size", "kept"), [(VOCABULARY + 1, set()), (2, {1, 2, 3})])
def test_impossible_sizes(size: int, kept: set[int]) -> None:
    with pytest.raises(ConfigError, match=r"vocab\.size is impossible"):
        build_map(np.zeros(VOCABULARY, dtype=np.int64), kept, size)


@pytest.mark.parametrize("ids", [[], [1, 1], [2, 1], [-1, 2], [3, 64]])
def test_a_map_that_breaks_the_invariants_is_refused(ids: list[int]) -> None:
    with pytest.raises(ContractError, match="not strictly ascending"):
        VocabMap(np.array(ids, dtype=np.int64), VOCABULARY)


def test_map_is_the_same_bytes_twice_and_readable_by_others(tmp_path: Path) -> None:
    vocab = VocabMap(np.array([1, 3, 9], dtype=np.int64), VOCABULARY)
    for name in ("a", "b"):
        write_map(tmp_path / name / "map.safetensors", vocab)
    for file in ("map.safetensors", "t2d.pt", "d2t.pt"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    d2t, t2d = (torch.load(tmp_path / "a" / f"{name}.pt") for name in ("d2t", "t2d"))
    assert (d2t.dtype, t2d.dtype, t2d.shape) == (torch.int64, torch.bool, (VOCABULARY,))
    assert (torch.arange(3) + d2t).tolist() == t2d.nonzero().flatten().tolist() == [1, 3, 9]
    assert np.array_equal(read_map(tmp_path / "a" / "map.safetensors").target_ids, [1, 3, 9])


def test_damaged_vocabulary_files(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(ContractError, match="not a readable"):
        read_counts(path)
    write_counts(path, np.zeros(4, dtype=np.int64))
    with pytest.raises(ContractError, match="lacks d2t, t2d"):
        read_map(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ContractError, match="not a readable"):
        read_counts(path)


@settings(deadline=None, max_examples=20)
@given(parts=st.lists(st.lists(st.lists(st.integers(0, 511), max_size=9), max_size=4), max_size=3))
def test_counts_equal_a_plain_count(
    tmp_path_factory: pytest.TempPathFactory, tiny_target: Target, parts: list[list[list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("counts")
    sidecars = [
        write_part(folder, f"{number:03d}", outputs) for number, outputs in enumerate(parts)
    ]
    out = folder / "d.json"
    count_dataset(sidecars, tiny_target.folder / "target.json", out)
    plain = [0] * tiny_target.vocab_size
    for outputs in parts:
        for output in outputs:
            for token in output:
                plain[token] += 1
    assert read_counts(folder / "d.safetensors").tolist() == plain
    assert read_json(out)["counts"] == {
        "supervised": sum(plain),
        "distinct": sum(count > 0 for count in plain),
    }
    assert damage(out) == []


@pytest.mark.parametrize("token", [-1, 512])
def test_counts_refuse_ids_of_another_target(
    tmp_path: Path, tiny_target: Target, token: int
) -> None:
    sidecar = write_part(tmp_path, "000", [[3, token]])
    with pytest.raises(ContractError, match="does not have"):
        count_dataset([sidecar], tiny_target.folder / "target.json", tmp_path / "d.json")


def counted(folder: Path, target: Target, datasets: dict[str, list[int]]) -> Iterator[Path]:
    for name, ids in datasets.items():
        sidecar = write_part(folder / "responses" / name, "000", [ids])
        out = folder / "vocab" / "counts" / f"{name}.json"
        count_dataset([sidecar], target.folder / "target.json", out)
        yield out


def test_make_map(tmp_path: Path, tiny_target: Target) -> None:
    datasets = {"one": [9] * 8 + [7] * 2, "two": [9, 11, 11, 300], "none": []}
    sidecars = list(counted(tmp_path, tiny_target, datasets))
    out = tmp_path / "vocab" / "map.json"
    target = tiny_target.folder / "target.json"
    make_map(sidecars, target, VocabSettings(size=64), out)
    vocab = read_map(out.with_name("map.safetensors"))
    assert {7, 9, 11, 300, *tiny_target.end_token_ids} <= set(vocab.target_ids.tolist())
    report = read_json(out.with_name("coverage.json"))
    assert (report["overall"], report["size"], report["padded"]) == (1.0, 64, 60)
    assert report["datasets"]["none"] == {
        "coverage": 1.0,
        "supervised": 0,
        "distinct": 0,
        "missing_top": [],
    }
    assert damage(out) == []
    before = out.read_bytes()
    make_map(sidecars[::-1], target, VocabSettings(size=64), out)
    assert out.read_bytes() == before


def test_a_map_that_stays_wakes_nothing(tmp_path: Path, tiny_target: Target) -> None:
    target, out = tiny_target.folder / "target.json", tmp_path / "vocab" / "map.json"
    saw = []
    for ids in ([9, 9, 7], [9, 9, 9, 7, 7]):
        make_map(
            list(counted(tmp_path, tiny_target, {"one": ids})), target, VocabSettings(size=64), out
        )
        saw.append(out.read_bytes())
    assert saw[0] == saw[1]


def test_low_coverage_names_the_dataset(tmp_path: Path, tiny_target: Target) -> None:
    rare = list(range(100, 300))
    sidecars = list(counted(tmp_path, tiny_target, {"common": [9] * 9999, "odd": rare}))
    out = tmp_path / "vocab" / "map.json"
    with pytest.raises(GateError) as error:
        make_map(sidecars, tiny_target.folder / "target.json", VocabSettings(size=64), out)
    assert "dataset odd: 0." in str(error.value)
    assert "at least 0.8" in str(error.value)
    assert "common" not in str(error.value)
    assert "all datasets" not in str(error.value)
    assert not out.exists()
    missing = read_json(out.with_name("coverage.json"))["datasets"]["odd"]["missing_top"]
    assert len(missing) == 20
    assert missing[0][1] == 1
    assert isinstance(missing[0][2], str)


def test_low_coverage_overall(tmp_path: Path, tiny_target: Target) -> None:
    sidecars = list(counted(tmp_path, tiny_target, {"odd": list(range(100, 300))}))
    lenient = VocabSettings(size=64, dataset_floor=0)
    with pytest.raises(GateError, match="all datasets together"):
        make_map(
            sidecars, tiny_target.folder / "target.json", lenient, tmp_path / "vocab" / "map.json"
        )


def test_coverage_is_the_share_of_tokens_not_of_ids() -> None:
    counts = np.zeros(VOCABULARY, dtype=np.int64)
    counts[[1, 2, 3]] = [90, 9, 1]
    report = coverage(VocabMap(np.array([0, 1], dtype=np.int64), VOCABULARY), {"d": counts}, str)
    assert report["overall"] == 0.9
    assert report["padded"] == 1
    assert report["datasets"]["d"]["missing_top"] == [[2, 9, "2"], [3, 1, "3"]]


def test_special_tokens_of_the_template_are_kept(tiny_target: Target) -> None:
    tokenizer = tiny_target.tokenizer()
    kept = kept_ids(tiny_target, tokenizer)
    names = {str(tokenizer.decode([token])) for token in kept}
    assert {"<|im_start|>", "<|im_end|>"} <= names
    assert set(tiny_target.end_token_ids) <= kept
    assert "<|endoftext|>" not in names


def test_counts_of_another_target_are_refused(tmp_path: Path, tiny_target: Target) -> None:
    (sidecar,) = counted(tmp_path, tiny_target, {"one": [9]})
    content = read_json(sidecar)
    write_sidecar(
        sidecar,
        "counts",
        [sidecar.with_suffix(".safetensors")],
        content["counts"],
        {**content["provenance"], "target": "another"},
    )
    with pytest.raises(ContractError, match="another target"):
        make_map(
            [sidecar],
            tiny_target.folder / "target.json",
            VocabSettings(size=64),
            tmp_path / "map.json",
        )
