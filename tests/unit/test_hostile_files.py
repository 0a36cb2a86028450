"""Artifacts and checkpoints of whoever wrote them: what they hold, or a typed error."""

import json
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from aerie.config import PathSource, TargetSettings
from aerie.contracts.candidates import Index, read_index, write_index
from aerie.contracts.draft import check_draft, read_draft, write_draft
from aerie.contracts.prompts import Prompt, read_prompt_slice, read_prompts, write_prompts
from aerie.contracts.responses import Response, read_responses, write_responses
from aerie.contracts.sidecar import read_whole
from aerie.contracts.states import StatesFile
from aerie.contracts.states_index import damage
from aerie.contracts.vocab import VocabMap, read_counts, read_map, write_counts, write_map
from aerie.engines.base import Answer
from aerie.engines.transformers.speculate import load_draft
from aerie.errors import AerieError, ConfigError, ContractError, DataError
from aerie.files import read_json, write_json
from aerie.responses.journal import Journal
from aerie.states.manifest import find_indexes, write_manifest
from aerie.states.show import file_facts, sample_facts
from aerie.target import read_target
from aerie.target_build import build_target
from aerie.train.checkpoint import load_checkpoint, save_checkpoint
from aerie.train.data import locate, read_pack
from aerie.train.optimizer import AdamW
from aerie.vocab.import_map import import_map
from tests.conftest import save_tiny_checkpoint
from tests.unit.hostile import damaged
from tests.unit.states_fixtures import write_part
from tests.unit.test_hostile_rows import VALUES
from tests.unit.train_fixtures import CONFIG, MAP, VOCAB

pytestmark = pytest.mark.usefixtures("one_thread")

Read = Callable[[Path], object]


def states_work(folder: Path) -> Path:
    part = folder / "states/chat/000"
    if not part.is_dir():
        write_part(part, [[5, 9], [3]])
        write_manifest([part / "index.json"], folder / "states/manifest.json")
    return part


def read_states(path: Path) -> None:
    states = StatesFile(path)
    list(states)
    states.damaged_tensors()
    file_facts(path)
    sample_facts(path, "0")


def read_states_index(path: Path) -> None:
    with suppress(AerieError):
        damage(path)
    if located := locate([path]):
        read_pack(located[:2])


def write_a_draft(folder: Path) -> Path:
    shapes = {name: shape for name, shape in CONFIG.shapes().items() if name not in ("d2t", "t2d")}
    random_ones = {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}
    ids = torch.arange(VOCAB) < MAP
    maps = {"d2t": torch.zeros(MAP, dtype=torch.int64), "t2d": ids}
    write_draft(folder, CONFIG, random_ones | maps)
    return folder


def read_the_draft(path: Path) -> None:
    check_draft(path.parent, CONFIG.max_position)
    load_draft(path.parent, torch.zeros(VOCAB, CONFIG.hidden_size))


def write_a_table(write: Callable[[Path], None]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write(folder / "t.parquet")
        return folder / "t.parquet"

    return make


def write_index_of_candidates(path: Path) -> None:
    write_index(
        path,
        Index(
            np.zeros((3, 16), np.uint8), np.zeros((32, 3), np.uint32), np.zeros((3, 128), np.uint8)
        ),
    )


def write_a_journal(path: Path) -> None:
    with Journal(path) as journal:
        journal.add((f"{n:032x}", Answer([n, 2], "stop")) for n in range(5))


def read_a_journal(path: Path) -> None:
    with Journal(path) as journal:
        for digest, answer in journal.answers.items():
            # A damaged answer is never taken for another one.
            assert answer == Answer([int(digest, 16), 2], "stop")


PROMPT = Prompt("a", "d", "k", 5, "instant", None, ["Hi"], '[{"name": "f"}]', ("x",))
RESPONSE = Response("a.0", "d", 0, "instant", [1], [3, 2], "stop", "0" * 32, "x")
KINDS: dict[str, tuple[Callable[[Path], None], str, tuple[Read, ...]]] = {
    "prompts": (
        lambda path: write_prompts(path, [PROMPT] * 3), "prompts.parquet",
        (read_prompts, lambda path: read_prompt_slice(path, 0, 2)),
    ),
    "responses": (
        lambda path: write_responses(path, [RESPONSE] * 3), "r.parquet", (read_responses,)
    ),
    "map": (
        lambda path: write_map(path, VocabMap(np.array([0, 2, 5]), 8)), "map.safetensors",
        (read_map,),
    ),
    "counts": (
        lambda path: write_counts(path, np.arange(9)), "counts.safetensors", (read_counts,)
    ),
    "candidates": (write_index_of_candidates, "candidates.safetensors", (read_index,)),
    "journal": (write_a_journal, "000.jsonl", (read_a_journal,)),
}  # fmt: skip


@settings(max_examples=120)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_a_damaged_file_is_a_typed_error_or_readable(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    write, name, reads = KINDS[kind]
    path = tmp_path_factory.getbasetemp() / f"damaged-{kind}" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    write(path)
    path.write_bytes(damaged(data, path.read_bytes()))
    for read in reads:
        with suppress(ContractError):
            read(path)


def write_any_json(path: Path, content: Any) -> None:
    """With lone surrogates, NaN and infinity, which Aerie's own writer refuses."""
    path.write_text(json.dumps(content), encoding="utf-8")


def reencoded(data: st.DataObject, content: dict[str, Any]) -> dict[str, Any]:
    """`content` with one of its values, at any depth, replaced by anything or gone."""
    key = data.draw(st.sampled_from(sorted(content)))
    value = content[key]
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        return {**content, key: reencoded(data, value)}
    if data.draw(st.integers(0, 3)) == 0:
        return {name: each for name, each in content.items() if name != key}
    numbers = st.sampled_from([-1, 0, 1, 3, 2**40, 2**70, [0, 1], "../../x", "00000.safetensors"])
    return {**content, key: data.draw(st.one_of(VALUES, numbers))}


def safetensors_header(data: st.DataObject, content: bytes) -> bytes:
    """A safetensors file with another header of its own length."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(reencoded(data, json.loads(content[8 : 8 + size]))).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


@settings(max_examples=120)
@given(data=st.data(), how=st.sampled_from(["bytes", "header"]))
def test_any_states_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, how: str
) -> None:
    part = states_work(tmp_path_factory.getbasetemp() / "good")
    path = tmp_path_factory.getbasetemp() / "bad.safetensors"
    good = (part / "00000.safetensors").read_bytes()
    path.write_bytes((damaged if how == "bytes" else safetensors_header)(data, good))
    with suppress(ContractError, DataError):
        read_states(path)


@settings(max_examples=60)
@given(data=st.data())
def test_any_index_and_manifest_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    part = states_work(tmp_path_factory.getbasetemp() / "good")
    index, manifest = part / "bad.json", part.parents[1] / "bad.json"
    write_any_json(index, reencoded(data, read_json(part / "index.json")))
    with suppress(ContractError, DataError):
        read_states_index(index)
    write_any_json(manifest, reencoded(data, read_json(part.parents[1] / "manifest.json")))
    with suppress(ContractError, DataError):
        find_indexes(manifest)
    with suppress(ContractError):
        read_whole(manifest, "manifest")


@settings(max_examples=60)
@given(data=st.data(), how=st.sampled_from(["bytes", "header", "config"]))
def test_any_draft_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, how: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "draft"
    write_a_draft(folder)
    config, weights = folder / "config.json", folder / "model.safetensors"
    if how == "config":
        write_any_json(config, reencoded(data, read_json(config)))
    else:
        change = damaged if how == "bytes" else safetensors_header
        weights.write_bytes(change(data, weights.read_bytes()))
    with suppress(AerieError):
        read_draft(folder)
    with suppress(AerieError):
        read_the_draft(config)


def optimizer(value: float) -> AdamW:
    master = torch.full((4,), value)
    return AdamW(master, master.clone(), (0.9, 0.95), 0.0, 0.5)


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(["state.json", "state.safetensors"]))
def test_a_damaged_checkpoint_is_passed_over(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    """What is resumed is what was saved, of this checkpoint or of the one before it."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for step in (1, 2):
        state = {"best": None, "contract": {"seed": 0}, "records": [step]}
        save_checkpoint(folder, step, optimizer(float(step)).state(), state, keep=2)
    file = folder / "step-000002" / name
    good = file.read_bytes()
    file.write_bytes(damaged(data, good))
    restored: list[Path] = []
    found = load_checkpoint(folder, {"seed": 0}, restored.append)
    assert found is not None and found["records"] == [found["step"]]
    saved = load_file(restored[0])
    assert saved["weights"].tolist() == [float(found["step"])] * 4


@settings(max_examples=60)
@given(data=st.data())
def test_any_description_of_a_target_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "target.json"
    counts = dict.fromkeys(("layers", "hidden_size", "vocab_size", "max_position"), 4)
    provenance = {
        "name": "t", "revision": "0", "dtype": "float32", "end_token_ids": [1],
        "special_token_ids": [], "thinking_variable": None, "trust_remote_code": False,
    }  # fmt: skip
    content = {"artifact": "target", "contract": 1, "files": {}, "counts": counts}
    write_any_json(path, reencoded(data, {**content, "provenance": provenance}))
    with suppress(ContractError):
        # Nothing but a plain `true` lets code run.
        assert isinstance(read_target(path).trust_remote_code, bool)


def test_a_map_in_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    """A gigabyte of zeros is a megabyte of archive: torch.save compresses nothing."""
    plain, packed = tmp_path / "plain.pt", tmp_path / "vocab_mapping.pt"
    maps = {"t2d": torch.zeros(10_000_000, dtype=torch.bool), "d2t": torch.tensor([0])}
    torch.save(maps, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w") as archive:
        for entry in source.infolist():
            archive.writestr(entry.filename, source.read(entry), zipfile.ZIP_DEFLATED)
    assert packed.stat().st_size < 100_000
    with pytest.raises(DataError, match="compressed"):
        import_map(packed, tmp_path / "out")


class Trap:
    """Unpickled freely, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["state.safetensors", "model.safetensors", "00000.safetensors"])
def test_a_pickle_under_the_name_of_an_artifact_runs_nothing(tmp_path: Path, name: str) -> None:
    sprung = tmp_path / "sprung"
    path = tmp_path / name
    write_a_draft(tmp_path)
    path.write_bytes(pickle.dumps({"weights": Trap(sprung)}))
    for read in (StatesFile, read_map, read_counts, read_index):
        with pytest.raises(ContractError):
            read(path)
    if name == "model.safetensors":
        with pytest.raises(ContractError):
            read_draft(tmp_path)
    assert not sprung.exists()


def checkpoint(folder: Path, **changes: dict[str, Any]) -> TargetSettings:
    """The tiny checkpoint with keys added to its files of those names."""
    save_tiny_checkpoint(folder)
    for name, keys in changes.items():
        path = folder / f"{name}.json"
        write_json(path, read_json(path) | keys)
    return TargetSettings(name="t", source=PathSource(path=str(folder)), dtype="float32")


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch sprung') }}",
    "{{ messages.append(1) }}",
    "{% for n in range(10 ** 9) %}x{% endfor %}",
    "{{ messages[7]['role'].x }}",
    "{{ 1 / 0 }}",
    "{{ raise_exception('no') }}",
    "{% for",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_hostile_template_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint/chat_template.jinja").write_text(template)
    with pytest.raises(DataError, match="chat template"):
        build_target(wanted, tmp_path / "target")
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "target/target.json").exists()


@pytest.mark.parametrize("name", ["config", "tokenizer_config"])
@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_another_repository_never_runs(tmp_path: Path, name: str, trusted: bool) -> None:
    key = {"config": "AutoConfig", "tokenizer_config": "AutoTokenizer"}[name]
    place = ["someone/else--tokenization.Tokenizer", None]
    wanted = checkpoint(tmp_path / "checkpoint", **{name: {"auto_map": {key: place}}})
    with pytest.raises(ConfigError, match="another repository"):
        build_target(wanted.model_copy(update={"trust_remote_code": trusted}), tmp_path / "target")


def test_code_beside_the_weights_does_not_run_unasked(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    place = {"auto_map": {"AutoConfig": "code.Config"}, "model_type": "never_heard_of"}
    wanted = checkpoint(tmp_path / "checkpoint", config=place)
    (tmp_path / "checkpoint/code.py").write_text(f"open({str(sprung)!r}, 'w')\n")
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        build_target(wanted, tmp_path / "target")
    assert not sprung.exists()


def test_weights_are_read_without_their_pickled_likeness(tmp_path: Path) -> None:
    """A folder that also holds `pytorch_model.bin` has its safetensors read and nothing else."""
    wanted = checkpoint(tmp_path / "checkpoint")
    sprung = tmp_path / "sprung"
    (tmp_path / "checkpoint/pytorch_model.bin").write_bytes(pickle.dumps(Trap(sprung)))
    target = build_target(wanted, tmp_path / "target")
    assert not (target.folder / "pytorch_model.bin").exists()
    assert not sprung.exists()
