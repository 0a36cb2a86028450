"""`aerie verify` finds what is damaged, removes exactly that, and leaves the rest alone."""

from pathlib import Path

import pytest
import torch

from aerie.contracts.layers import Layers
from aerie.contracts.sidecar import read_whole, vouched, write_sidecar
from aerie.contracts.states import Sample
from aerie.contracts.states_index import write_index
from aerie.contracts.states_writer import StatesWriter
from aerie.errors import ContractError
from aerie.files import read_json, write_json, write_sealed
from aerie.prompts.select import whole_selection
from aerie.verify import repair, verify
from tests.commands import aerie


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work folder with two tables of responses, a draft and a part of states."""
    folder = tmp_path / "work"
    for part in ("000", "001"):
        table = folder / "responses" / "d" / f"{part}.parquet"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_bytes(part.encode() * 100)
        write_sidecar(table.with_suffix(".json"), "responses", [table], {}, {})
    draft = folder / "draft" / "main"
    draft.mkdir(parents=True)
    write_json(draft / "config.json", {"architectures": ["LlamaForCausalLMEagle3"]})
    (draft / "model.safetensors").write_bytes(b"weights")
    files = [draft / "config.json", draft / "model.safetensors"]
    write_sidecar(draft / "draft.json", "draft", files, {}, {})
    states = folder / "states" / "d" / "000"
    for name in ("00000", "00001"):
        path = states / f"{name}.safetensors"
        with StatesWriter(path, [5], 6, 2, f"key of {name}") as writer:
            writer.add(
                Sample(
                    torch.arange(5, dtype=torch.int32),
                    torch.ones(5, dtype=torch.uint8),
                    torch.ones(5, 6).bfloat16(),
                    torch.ones(5, 2).bfloat16(),
                )
            )
    index = {"00000.safetensors": ["p0.0"], "00001.safetensors": ["p1.0"]}
    counts = {"samples": 2, "tokens": 10}
    write_index(states / "index.json", index, Layers((1, 2, 3)), counts, {"codec": "bf16"})
    return folder


def everything(work: Path) -> set[str]:
    return {str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()}


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_whole_work_folder_has_no_findings(work: Path) -> None:
    (work / "responses" / "d" / ".002.parquet.x.tmp").write_bytes(b"half")
    write_json(work / "bench" / "main" / "chat.json", {"accept_length": 2})
    verdict = verify(work)
    assert verdict.checked == {"draft": 1, "responses": 2, "states": 1}
    assert verdict.findings == []
    assert len(verdict.leftovers) == 1


@pytest.mark.parametrize(
    ("damaged", "sidecar"),
    [
        ("responses/d/001.parquet", "responses/d/001.json"),
        ("draft/main/model.safetensors", "draft/main/draft.json"),
        ("draft/main/config.json", "draft/main/draft.json"),
        ("states/d/000/00001.safetensors", "states/d/000/index.json"),
    ],
)
@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_damage_is_named_and_only_it_is_removed(
    work: Path, damaged: str, sidecar: str, how: str
) -> None:
    before = everything(work)
    path = work / damaged
    if how == "flipped":
        flip(path)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    (finding,) = verify(work).findings
    assert (finding.file, finding.sidecar) == (path, work / sidecar)
    repair([finding])
    assert everything(work) == before - {damaged, sidecar}
    assert verify(work).findings == []


def test_a_broken_sidecar_is_removed_and_its_files_stay(work: Path) -> None:
    path = work / "responses" / "d" / "000.json"
    path.write_text(path.read_text()[:-20])
    (finding,) = verify(work).findings
    assert (finding.file, finding.problem) == (path, "is not JSON")
    repair([finding])
    assert "responses/d/000.parquet" in everything(work)
    assert "responses/d/000.json" not in everything(work)


@pytest.mark.parametrize("files", [None, ["000.parquet"], {"000.parquet": 3}])
def test_a_sidecar_that_makes_no_sense(work: Path, files: object) -> None:
    path = work / "responses" / "d" / "000.json"
    write_json(path, {**read_json(path), "files": files})
    (finding,) = verify(work).findings
    assert (finding.file, finding.problem) == (path, "does not describe its files")


def test_another_contract_version(work: Path) -> None:
    path = work / "states" / "d" / "000" / "index.json"
    write_json(path, {**read_json(path), "contract": 0})
    (finding,) = verify(work).findings
    assert "contract version 0" in finding.problem
    repair([finding])
    assert "states/d/000/00000.safetensors" in everything(work)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="not a folder"):
        verify(tmp_path / "nothing")


def test_command_line(work: Path) -> None:
    flip(work / "responses" / "d" / "001.parquet")
    result = aerie("verify", work)
    assert result.returncode == 1
    assert "responses/d/001.parquet" in result.stdout
    assert "--repair" in result.stdout
    result = aerie("verify", work, "--repair")
    assert result.returncode == 0
    assert result.stdout.count("removed ") == 2
    result = aerie("verify", work)
    assert result.returncode == 0
    assert result.stdout == "read 1 draft, 1 responses, 1 states; 0 damaged\n"


def test_states_ls(work: Path) -> None:
    result = aerie("states", "ls", work / "states" / "d" / "000" / "index.json")
    assert result.returncode == 0
    for part in ("00001.safetensors", "p1.0", "tokens: 10", "codec: bf16", "sglang_config"):
        assert part in result.stdout


def test_errors_read_well(tmp_path: Path) -> None:
    result = aerie("states", "ls", tmp_path / "index.json")
    assert result.returncode == 1
    assert result.stderr.startswith("artifact: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["../../../kept.txt", "/kept.txt", "a/../../../../kept.txt"])
def test_a_sidecar_that_names_a_file_outside_removes_nothing_there(work: Path, name: str) -> None:
    kept = work.parent / "kept.txt"
    kept.write_text("mine")
    outside = str(kept) if name.startswith("/") else name
    path = work / "responses" / "d" / "000.json"
    content = read_json(path)
    write_json(path, {**content, "files": {outside: {"xxh3": "0" * 32, "bytes": 1}}})
    (finding,) = verify(work).findings
    assert (finding.file, finding.problem) == (path, "names files outside of its folder")
    repair([finding])
    assert kept.read_text() == "mine" and not path.exists()


def test_a_changed_sidecar_is_named(work: Path) -> None:
    path = work / "responses" / "d" / "000.json"
    path.write_text(path.read_text().replace('"counts": {}', '"counts": {"rows": 1}'))
    (finding,) = verify(work).findings
    assert (finding.file, finding.problem) == (path, "changed since it was written")


def test_a_swapped_table_is_an_error_of_whoever_reads_it(work: Path) -> None:
    tables = [work / "responses" / "d" / f"{part}.parquet" for part in ("000", "001")]
    first, second = (table.read_bytes() for table in tables)
    tables[0].write_bytes(second)
    tables[1].write_bytes(first)
    for table in tables:
        with pytest.raises(ContractError, match="does not fit the files beside it"):
            read_whole(table.with_suffix(".json"), "responses")
        # Only what is asked for is read.
        read_whole(table.with_suffix(".json"), "responses", names=[])
        read_whole(table.with_suffix(".json"), "responses", up_to=10)


def test_a_selection_that_lost_a_part_is_named_and_goes_whole(work: Path) -> None:
    """Snakemake knows the folder alone: while that is there, nothing would make the part again."""
    folder = work / "prompts" / "d"
    folder.mkdir(parents=True)
    for name in ("000", "001"):
        (folder / f"{name}.parquet").write_bytes(name.encode())
        write_sidecar(folder / f"{name}.json", "prompts", [folder / f"{name}.parquet"], {}, {})
    files = vouched(folder, folder.glob("*.json"))
    parts = [{"name": "000"}, {"name": "001"}]
    write_sealed(folder / "selection.json", {"dataset": "d", "files": files, "parts": parts})
    assert verify(work).findings == [] and whole_selection(folder) == ["000", "001"]
    (folder / "001.json").unlink()
    with pytest.raises(ContractError, match="lacks parts"):
        whole_selection(folder)
    (finding,) = verify(work).findings
    assert (finding.file, finding.problem) == (folder / "001.json", "missing")
    repair([finding])
    assert not folder.exists() and verify(work).findings == []


def test_a_folder_of_prompts_without_its_selection_is_named(work: Path) -> None:
    folder = work / "prompts" / "d"
    folder.mkdir(parents=True)
    (finding,) = verify(work).findings
    assert (finding.file, finding.problem) == (folder / "selection.json", "missing")
    repair([finding])
    assert not folder.exists()
