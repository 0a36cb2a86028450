"""States for other trainers: what they read is what was captured, whatever was killed before."""

import json
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn import functional

from aerie.contracts.sidecar import read_sidecar
from aerie.contracts.states import Sample, StatesFile
from aerie.contracts.vocab import VocabMap, read_map, write_map
from aerie.errors import ContractError, DataError
from aerie.states.export import export
from aerie.states.manifest import find_indexes, write_manifest
from aerie.states.show import file_facts, sample_facts
from aerie.verify import verify
from aerie.vocab.import_map import import_map
from tests.commands import aerie
from tests.unit.states_fixtures import HIDDEN, SCALE, VOCAB, write_part, write_target

COUNTS = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=3), min_size=1, max_size=3)


@pytest.fixture
def part(tmp_path: Path) -> tuple[Path, list[Sample]]:
    folder = tmp_path / "states" / "chat" / "000"
    return folder / "index.json", write_part(folder, [[5, 3], [7]])


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def specforge(out: Path) -> Iterator[dict[str, torch.Tensor]]:
    """The samples in their order, checked as `normalize_offline_sample` of SpecForge uses them.

    `weights_only` is stricter than SpecForge, which unpickles anything; `mmap` is what it asks for.
    """
    paths = sorted(out.rglob("*.ckpt"), key=lambda path: int(path.stem.removeprefix("data_")))
    for number, path in enumerate(paths):
        start = number // 2000 * 2000
        assert path.relative_to(out) == Path(f"rows_{start}-{start + 2000}/data_{number}.ckpt")
        raw = torch.load(path, weights_only=True, mmap=True)
        assert set(raw) == {"input_ids", "loss_mask", "hidden_state", "aux_hidden_state"}
        (length,) = raw["input_ids"].shape
        assert raw["input_ids"].dtype == raw["loss_mask"].dtype == torch.int64
        assert raw["loss_mask"].shape == (length,)
        assert raw["aux_hidden_state"].shape == (1, length, 3 * HIDDEN)
        assert raw["hidden_state"].shape == (1, length, HIDDEN)
        assert raw["aux_hidden_state"].dtype == raw["hidden_state"].dtype == torch.bfloat16
        yield raw


def write_parts(work: Path, parts: list[list[int]]) -> list[Sample]:
    """A part of one file for each list of lengths; their samples in order."""
    return [
        each
        for number, lengths in enumerate(parts)
        for each in write_part(work / f"states/d/{number:03d}", [lengths])
    ]


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(parts=COUNTS)
def test_what_specforge_reads_is_what_was_captured(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]
) -> None:
    work = tmp_path_factory.mktemp("work")
    written = write_parts(work, parts)
    export(find_indexes(work / "states"), "specforge", work / "out")
    read = list(specforge(work / "out"))
    assert len(read) == len(written)
    for found, expected in zip(read, written, strict=True):
        assert torch.equal(found["input_ids"], expected.token_ids.long())
        assert torch.equal(found["loss_mask"], expected.loss_mask.long())
        assert torch.equal(found["aux_hidden_state"][0], expected.aux)
        assert torch.equal(found["hidden_state"][0], expected.final())


def test_a_sample_takes_its_own_bytes_alone(tmp_path: Path) -> None:
    """torch.save keeps the whole storage of a view: here, of a file a thousand times larger."""
    write_part(tmp_path / "states/d/000", [[2, 2000]])
    export(find_indexes(tmp_path / "states"), "specforge", tmp_path / "out")
    size = (tmp_path / "out/rows_0-2000/data_0.ckpt").stat().st_size
    assert size < 2 * (4 * HIDDEN * 2 + 16) + 4096


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(parts=COUNTS)
def test_what_speculators_reads_is_what_was_captured(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]
) -> None:
    work = tmp_path_factory.mktemp("work")
    written = write_parts(work, parts)
    out = work / "out"
    export(find_indexes(work / "states"), "speculators", out, write_target(work / "target"))
    rows = dataset(out)
    assert [row["seq_len"] for row in rows] == [len(each.token_ids) for each in written]
    assert len(list((out / "hidden_states").iterdir())) == len(written)
    for number, (row, expected) in enumerate(zip(rows, written, strict=True)):
        found = load_file(out / f"hidden_states/hs_{number}.safetensors")
        assert set(found) == {"hidden_states", "token_ids"}
        length = len(expected.token_ids)
        assert found["hidden_states"].shape == (length, 4, HIDDEN)
        assert found["hidden_states"].dtype == torch.bfloat16
        assert torch.equal(found["token_ids"], expected.token_ids.long())
        assert row["input_ids"] == expected.token_ids.tolist()
        assert row["loss_mask"] == expected.loss_mask.tolist()
        # As ArrowDataset takes them apart.
        assert torch.equal(found["hidden_states"][:, :-1].flatten(1), expected.aux)
        normed = functional.rms_norm(
            found["hidden_states"][:, -1].float(), (HIDDEN,), SCALE.float(), 1e-6
        )
        # Two roundings to bf16: 2 ** -8 each, at most.
        torch.testing.assert_close(normed, expected.final().float(), rtol=2**-7, atol=1e-3)


def dataset(folder: Path) -> list[dict[str, Any]]:
    """The rows of a dataset of Hugging Face, as `datasets.load_from_disk` finds them."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    assert state["_format_type"] == "torch"
    rows: list[dict[str, Any]] = []
    for entry in state["_data_files"]:
        with pa.memory_map(str(folder / entry["filename"])) as stream:
            table = pa.ipc.open_stream(stream).read_all()
        features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
        info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
        assert features == info["features"]
        assert set(features) == set(table.column_names)
        rows += table.to_pylist()
    return rows


def test_speculators_needs_the_norm_of_the_target(
    part: tuple[Path, list[Sample]], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="before the norm"):
        export([part[0]], "speculators", tmp_path / "out")
    target = write_target(tmp_path / "other", revision="another")
    with pytest.raises(ContractError, match="not the target of these states"):
        export([part[0]], "speculators", tmp_path / "out", target)


@pytest.mark.parametrize("scale", [SCALE - 1, torch.zeros(HIDDEN).bfloat16()], ids=["1 + w", "0"])
def test_another_kind_of_norm_is_refused(
    part: tuple[Path, list[Sample]], tmp_path: Path, scale: torch.Tensor
) -> None:
    target = write_target(tmp_path / "target", scale)
    with pytest.raises(ContractError, match="final norm"):
        export([part[0]], "speculators", tmp_path / "out", target)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), form=st.sampled_from(["specforge", "speculators"]))
def test_a_second_run_writes_what_is_missing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, form: str
) -> None:
    """Whatever a killed run had not written, the folder ends as one that was written at once."""
    work = tmp_path_factory.mktemp("work")
    write_part(work / "states/d/000", [[5, 3], [7, 1]])
    indexes, target = find_indexes(work / "states"), write_target(work / "target")
    export(indexes, form, work / "out", target)
    whole = content(work / "out")
    for name in data.draw(st.sets(st.sampled_from(sorted(set(whole) - {"export.json"})))):
        (work / "out" / name).unlink()
    scratch = work / "out" / f".{data.draw(st.sampled_from(sorted(whole)))[-6:].strip('/')}.x.tmp"
    scratch.write_bytes(b"half")
    before = {path: path.stat().st_mtime_ns for path in (work / "out").rglob("*.ckpt")}
    export(indexes, form, work / "out", target)
    assert content(work / "out") == whole
    assert all(path.stat().st_mtime_ns == changed for path, changed in before.items())


def test_two_exports_are_not_mixed(part: tuple[Path, list[Sample]], tmp_path: Path) -> None:
    export([part[0]], "specforge", tmp_path / "out")
    other = tmp_path / "states" / "chat" / "001"
    write_part(other, [[4]])
    with pytest.raises(DataError, match="holds something else"):
        export([part[0], other / "index.json"], "specforge", tmp_path / "out")
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="holds something else"):
        export([part[0]], "specforge", foreign)
    assert [path.name for path in foreign.iterdir()] == ["notes.txt"]


def test_parts_of_two_targets_are_not_mixed(
    part: tuple[Path, list[Sample]], tmp_path: Path
) -> None:
    other = tmp_path / "states" / "chat" / "001"
    write_part(other, [[4]], target="another")
    with pytest.raises(ContractError, match="captured in another way"):
        export(find_indexes(tmp_path / "states"), "specforge", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("at", [-1, 700])
def test_damaged_states_are_not_exported(
    part: tuple[Path, list[Sample]], tmp_path: Path, at: int
) -> None:
    file = part[0].with_name("00001.safetensors")
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(ContractError, match=r"00001\.safetensors"):
        export([part[0]], "specforge", tmp_path / "out")
    # What came before the damage is right, and stays.
    assert len(list(specforge(tmp_path / "out"))) == 2


def test_find_indexes(part: tuple[Path, list[Sample]], tmp_path: Path) -> None:
    other = tmp_path / "states" / "chat" / "001" / "index.json"
    write_part(other.parent, [[4]])
    states = tmp_path / "states"
    write_manifest([other], states / "manifest.json")
    assert find_indexes(part[0]) == find_indexes(part[0].parent) == [part[0]]
    assert find_indexes(states) == find_indexes(states / "chat") == [part[0], other]
    assert find_indexes(states / "manifest.json") == [other]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no states"):
        find_indexes(tmp_path / "empty")


def test_facts_of_a_file_and_a_sample(part: tuple[Path, list[Sample]]) -> None:
    index, written = part
    file = index.with_name("00000.safetensors")
    facts = file_facts(file)
    assert (facts.samples, facts.tokens, facts.supervised) == (2, 8, 5)
    assert facts.lengths == (3, 4, 5)
    assert facts.layers == ["layer 2", "layer 3", "layer 5"]
    assert ("aux", (8, 3 * HIDDEN)) in [tensor[:2] for tensor in facts.tensors]
    found = sample_facts(file, "1")
    assert found == sample_facts(file, "p1.0")
    assert (found.id, found.tokens, found.supervised) == ("p1.0", 3, 2)
    norms = written[1].aux[:, HIDDEN : 2 * HIDDEN].float().norm(dim=1)
    name, mean, least, largest = found.norms[1]
    assert name == "layer 3"
    assert (mean, least, largest) == pytest.approx(
        (float(norms.mean()), float(norms.min()), float(norms.max()))
    )
    index.unlink()
    assert sample_facts(file, "1").id is None
    assert file_facts(file).layers == ["aux 0", "aux 1", "aux 2"]
    for wrong in ("2", "-1", "p1.0", "²"):
        with pytest.raises(DataError, match="has no sample"):
            sample_facts(file, wrong)


def save_mapping(path: Path, **tensors: Any) -> Path:
    torch.save(tensors, path)
    return path


@settings(deadline=None, max_examples=30)
@given(ids=st.sets(st.integers(0, VOCAB - 1), min_size=1), has_target=st.booleans())
def test_a_map_of_specforge_becomes_one_of_aerie(
    tmp_path_factory: pytest.TempPathFactory, ids: set[int], has_target: bool
) -> None:
    work = tmp_path_factory.mktemp("map")
    vocab = VocabMap(torch.tensor(sorted(ids)).numpy(), VOCAB)
    file = save_mapping(
        work / "vocab_mapping.pt",
        d2t=torch.from_numpy(vocab.d2t),
        t2d=torch.from_numpy(vocab.t2d),
    )
    target = write_target(work / "target") if has_target else None
    import_map(file, work / "out", target)
    read = read_map(work / "out" / "map.safetensors")
    assert read.target_ids.tolist() == sorted(ids)
    assert read.vocab_size == VOCAB
    sidecar = read_sidecar(work / "out" / "map.json", "map")
    assert sidecar["provenance"]["target"] == ("revision" if has_target else None)
    assert sidecar["counts"] == {"size": len(ids), "vocab_size": VOCAB}
    assert verify(work / "out").findings == []
    # The same as a map that Aerie made itself.
    write_map(work / "own" / "map.safetensors", vocab)
    assert (work / "own" / "map.safetensors").read_bytes() == (
        work / "out" / "map.safetensors"
    ).read_bytes()


MEMBERS = torch.tensor([True, False, True, True, False])
OFFSETS = torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"d2t": OFFSETS}, "t2d is not what a map has"),
        ({"t2d": MEMBERS}, "d2t is not what a map has"),
        ({"t2d": MEMBERS.int(), "d2t": OFFSETS}, "t2d is not what"),
        ({"t2d": MEMBERS, "d2t": OFFSETS.float()}, "d2t is not what"),
        ({"t2d": MEMBERS, "d2t": OFFSETS[None]}, "d2t is not what"),
        ({"t2d": MEMBERS, "d2t": OFFSETS.to_sparse()}, "d2t is not what"),
        ({"t2d": MEMBERS, "d2t": [0, 1, 1]}, "d2t is not what"),
        ({"t2d": MEMBERS, "d2t": torch.tensor(0).expand(10**12)}, "d2t is not what"),
        ({"t2d": MEMBERS, "d2t": torch.tensor([], dtype=torch.int64)}, "d2t is no map"),
        ({"t2d": MEMBERS, "d2t": torch.tensor([0, 2, 2])}, "disagree"),
        ({"t2d": MEMBERS, "d2t": torch.tensor([0, 1])}, "disagree"),
        ({"t2d": MEMBERS, "d2t": torch.tensor([0, 1, 3])}, "d2t is no map"),
        ({"t2d": MEMBERS, "d2t": torch.tensor([-1, 1, 1])}, "d2t is no map"),
        ({"t2d": MEMBERS, "d2t": torch.tensor([2, 1, 1])}, "d2t is no map"),
        ({"t2d": MEMBERS, "d2t": torch.tensor([0, 2, 3]) - 1}, "d2t is no map"),
        # Ids whose differences overflow to positive numbers.
        ({"t2d": MEMBERS, "d2t": torch.tensor([0, 2**62, -(2**63), -(2**62), 0])}, "no map"),
    ],
)
def test_what_is_no_map_is_refused(tmp_path: Path, tensors: dict[str, Any], problem: str) -> None:
    file = save_mapping(tmp_path / "vocab_mapping.pt", **tensors)
    with pytest.raises(DataError, match=problem):
        import_map(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Trap:
    """Unpickled freely, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("how", ["missing", "text", "empty", "cut", "list", "pickle", "code"])
def test_what_is_no_file_of_tensors_is_refused(tmp_path: Path, how: str) -> None:
    file = save_mapping(tmp_path / "vocab_mapping.pt", t2d=MEMBERS, d2t=OFFSETS)
    sprung = tmp_path / "sprung"
    if how == "missing":
        file.unlink()
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-200])
    elif how == "list":
        torch.save([MEMBERS, OFFSETS], file)
    elif how == "pickle":
        file.write_bytes(pickle.dumps({"t2d": Trap(sprung)}))
    elif how == "code":
        torch.save({"t2d": MEMBERS, "d2t": OFFSETS, "more": Trap(sprung)}, file)
    else:
        file.write_bytes(b"text" if how == "text" else b"")
    with pytest.raises(DataError, match=r"vocab_mapping\.pt"):
        import_map(file, tmp_path / "out")
    assert not sprung.exists()


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_damaged_map_is_a_typed_error_or_the_map(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    work = tmp_path_factory.mktemp("map")
    file = save_mapping(work / "vocab_mapping.pt", t2d=MEMBERS, d2t=OFFSETS)
    raw = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) // 2]))])
    try:
        vocab = import_map(file, work / "out")
    except DataError:
        return
    assert math.isfinite(vocab.target_ids.sum())


def test_a_map_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    file = save_mapping(tmp_path / "vocab_mapping.pt", t2d=MEMBERS, d2t=OFFSETS)
    with pytest.raises(DataError, match="another target"):
        import_map(file, tmp_path / "out", write_target(tmp_path / "target"))


def test_command_line(part: tuple[Path, list[Sample]], tmp_path: Path) -> None:
    index, _ = part
    write_part(tmp_path / "states/chat/001", [[4]])
    result = aerie("states", "ls", tmp_path / "states")
    assert result.returncode == 0, result.stderr
    assert "chat/001" in result.stdout and "2 parts" in result.stdout
    file = index.with_name("00000.safetensors")
    result = aerie("states", "show", file)
    assert StatesFile(file).metadata["xxh3.aux"] in result.stdout
    result = aerie("states", "export", index, "--format", "speculators", "--out", tmp_path / "o")
    assert result.returncode == 1 and "--target" in result.stderr
