"""The states format: whole or absent, readable by others, damage found."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from aerie.contracts.layers import Layers, choose_layers
from aerie.contracts.states import Sample, StatesFile, Stretch, file_key, token_bytes
from aerie.contracts.states_index import damage, write_index
from aerie.contracts.states_writer import StatesWriter
from aerie.errors import ConfigError, ContractError
from aerie.files import read_json

AUX, LAST = 12, 4


def sample(length: int, seed: int = 0) -> Sample:
    source = torch.Generator().manual_seed(seed)
    return Sample(
        torch.randint(0, 1000, (length,), generator=source, dtype=torch.int32),
        torch.randint(0, 2, (length,), generator=source, dtype=torch.uint8),
        torch.randn(length, AUX, generator=source).bfloat16(),
        torch.randn(length, LAST, generator=source).bfloat16(),
    )


def write(path: Path, samples: list[Sample], key: str = "k") -> None:
    lengths = [len(each.token_ids) for each in samples]
    with StatesWriter(path, lengths, AUX, LAST, key) as writer:
        for each in samples:
            writer.add(each)


def assert_equal(a: Sample, b: Sample) -> None:
    for name in ("token_ids", "loss_mask", "aux", "last"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(0, 40), max_size=6))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, lengths: list[int]) -> None:
    path = tmp_path_factory.mktemp("states") / "0.safetensors"
    samples = [sample(length, seed) for seed, length in enumerate(lengths)]
    write(path, samples)
    states = StatesFile(path)
    assert len(states) == len(samples)
    for read, written in zip(states, samples, strict=True):
        assert_equal(read, written)
    assert states.damaged_tensors() == []


def test_other_tools_can_read_it(tmp_path: Path) -> None:
    samples = [sample(3), sample(5, 1)]
    write(tmp_path / "0.safetensors", samples)
    tensors = load_file(tmp_path / "0.safetensors")
    assert tensors["offsets"].tolist() == [0, 3, 8]
    assert torch.equal(tensors["aux"], torch.cat([each.aux for each in samples]))
    assert tensors["token_ids"].dtype == torch.int32
    assert tensors["loss_mask"].dtype == torch.uint8
    assert tensors["last"].dtype == torch.bfloat16


def test_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, [sample(9), sample(2, 1)])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_size_is_what_the_disk_gate_counts(tmp_path: Path) -> None:
    write(tmp_path / "a", [sample(1000)])
    write(tmp_path / "b", [sample(3000)])
    difference = (tmp_path / "b").stat().st_size - (tmp_path / "a").stat().st_size
    assert difference == pytest.approx(2000 * token_bytes(AUX, LAST), abs=64)


def test_index_from_the_end_and_past_it(tmp_path: Path) -> None:
    samples = [sample(3), sample(5, 1)]
    write(tmp_path / "0.safetensors", samples)
    states = StatesFile(tmp_path / "0.safetensors")
    assert_equal(states[-1], samples[1])
    with pytest.raises(IndexError):
        states[2]


def test_absent_until_complete(tmp_path: Path) -> None:
    path = tmp_path / "0.safetensors"
    with StatesWriter(path, [3], AUX, LAST, "k") as writer:
        writer.add(sample(3))
        assert not path.exists()
    assert [file.name for file in tmp_path.iterdir()] == ["0.safetensors"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        StatesWriter(tmp_path / "0.safetensors", [3], AUX, LAST, "k"),
    ):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_missing_samples_are_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(ContractError, match="samples are missing"),
        StatesWriter(tmp_path / "0.safetensors", [3, 4], AUX, LAST, "k") as writer,
    ):
        writer.add(sample(3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        Sample(*vars(sample(4)).values()),
        Sample(**{**vars(sample(3)), "aux": torch.zeros(3, LAST).bfloat16()}),
        Sample(**{**vars(sample(3)), "aux": torch.zeros(3, AUX)}),
        Sample(**{**vars(sample(3)), "loss_mask": torch.zeros(3, dtype=torch.bool)}),
    ],
    ids=["rows", "width", "dtype", "mask dtype"],
)
def test_a_wrong_sample_is_refused(tmp_path: Path, wrong: Sample) -> None:
    with (
        pytest.raises(ContractError, match="wrong shape or dtype"),
        StatesWriter(tmp_path / "0.safetensors", [3], AUX, LAST, "k") as writer,
    ):
        writer.add(wrong)
    assert list(tmp_path.iterdir()) == []


def test_one_sample_too_many_is_refused(tmp_path: Path) -> None:
    with StatesWriter(tmp_path / "0.safetensors", [3], AUX, LAST, "k") as writer:
        writer.add(sample(3))
        with pytest.raises(ContractError, match="more samples"):
            writer.add(sample(3))


@pytest.mark.parametrize("left", [0, 4, 100, -1])
def test_a_truncated_file_is_not_opened(tmp_path: Path, left: int) -> None:
    path = tmp_path / "0.safetensors"
    write(path, [sample(50)])
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ContractError, match="not a whole states file"):
        StatesFile(path)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_flipped_bit_of_the_data_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("states") / "0.safetensors"
    write(path, [sample(20)])
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    content[data.draw(st.integers(start, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        found = StatesFile(path).damaged_tensors()
    except ContractError:
        return
    assert len(found) == 1


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_flipped_bit_of_a_sample_is_found_by_who_reads_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("states") / "0.safetensors"
    samples = [sample(length, length) for length in (3, 20, 7)]
    write(path, samples)
    states = StatesFile(path)
    name = data.draw(st.sampled_from(["token_ids", "loss_mask", "aux", "last", "sample_xxh3"]))
    begin, end = states.places[name]
    place = data.draw(st.integers(begin, end - 1))
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    rows = [0, 1, 2, 3] if name == "sample_xxh3" else [0, 3, 23, 30]
    at = (place - begin) * rows[-1] // (end - begin)
    hit = next(number for number in range(3) if at < rows[number + 1])
    states = StatesFile(path)
    for number, written in enumerate(samples):
        if number == hit:
            with pytest.raises(ContractError, match=f"{path}: sample {hit} changed"):
                states.stored(number)
        else:
            assert_equal(states[number], written)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_rows_are_read_to_where_they_are_wanted(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("states") / "0.safetensors"
    samples = [sample(length, length) for length in (4, 9)]
    write(path, samples)
    states, number = StatesFile(path), data.draw(st.integers(0, 1))
    length = len(samples[number].token_ids)
    into, around = {}, {}
    for name in data.draw(st.sets(st.sampled_from(["aux", "last", "token_ids", "loss_mask"]))):
        first = data.draw(st.integers(0, length))
        count = data.draw(st.integers(0, length - first))
        around[name] = states.like[name].new_full((count + 2, *states.like[name].shape[1:]), 7)
        into[name] = Stretch(around[name][1:-1], first)
    # Several calls for each stretch.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aerie.contracts.states._CHUNK_BYTES", data.draw(st.integers(1, 50)))
        states.read(number, into)
    for name, (rows, first) in into.items():
        assert torch.equal(rows, getattr(samples[number], name)[first : first + len(rows)])
        assert (around[name][[0, -1]] == 7).all()


def test_a_file_of_another_version_says_so(tmp_path: Path) -> None:
    path = tmp_path / "0.safetensors"
    write(path, [sample(5)])
    path.write_bytes(path.read_bytes().replace(b'"contract":"2"', b'"contract":"1"'))
    with pytest.raises(ContractError, match="another contract version"):
        StatesFile(path)


def test_index_finds_damage(tmp_path: Path) -> None:
    for name in ("0", "1", "2", "3"):
        write(tmp_path / f"{name}.safetensors", [sample(5, int(name))])
    index = tmp_path / "index.json"
    files = {f"{name}.safetensors": [f"id{name}"] for name in ("0", "1", "2", "3")}
    write_index(index, files, Layers((1, 2, 3)), {"samples": 4}, {})
    assert damage(index) == []
    assert read_json(index)["layers"]["sglang_config"] == [0, 1, 2]

    (tmp_path / "0.safetensors").unlink()
    content = bytearray((tmp_path / "1.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "1.safetensors").write_bytes(content)
    write(tmp_path / "2.safetensors", [sample(5, 2)], key="other")
    problems = damage(index)
    assert [Path(problem.split(": ")[0]).name[0] for problem in problems] == ["0", "1", "2"]
    assert "changed since it was written" in problems[1]
    assert "other samples" in problems[2]


def test_key_knows_where_the_answer_begins() -> None:
    assert file_key([([1, 2], [3])], {}) == file_key([([1, 2], [3])], {})
    assert file_key([([1, 2], [3])], {}) != file_key([([1], [2, 3])], {})
    assert file_key([([1], [2])], {"target": "a"}) != file_key([([1], [2])], {"target": "b"})


def test_layers_in_both_conventions() -> None:
    layers = choose_layers(61)
    assert layers.hf_hidden_states == (2, 30, 58)
    assert layers.sglang_config == (1, 29, 57)


@pytest.mark.parametrize("wanted", [(0, 1, 2), (1, 2, 8), (3, 2, 4), (2, 2, 3)])
def test_impossible_layers_are_an_error(wanted: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="indices from 1 to 7"):
        choose_layers(8, wanted)
