"""Files appear whole or not at all; digests name content and nothing else."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.errors import ContractError
from aerie.files import (
    canonical_json,
    digest_bytes,
    digest_file,
    digest_json,
    is_inside,
    read_json,
    replacing,
    write_json,
    write_sealed,
)


def test_replacing_writes_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with replacing(path) as scratch:
        scratch.write_text("content")
        assert not path.exists()
        assert scratch.parent == path.parent
    assert path.read_text() == "content"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_replacing_leaves_the_old_content_on_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as scratch:
        scratch.write_text(f"new {1 / 0}")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    child = os.fork()
    if not child:
        with replacing(path) as scratch:
            scratch.write_text("new")
            os._exit(9)
    os.waitpid(child, 0)
    assert path.read_text() == "old"


def test_artifacts_are_for_the_whole_team(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_json(tmp_path / "file", 1)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_read_json_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(ContractError, match="is missing"):
        read_json(path)
    for content in (b"{", b"", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(ContractError, match="is not JSON"):
            read_json(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(value=st.dictionaries(st.text(max_size=3), json_values))
def test_digest_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    backwards = dict(reversed(value.items()))
    assert canonical_json(value) == canonical_json(backwards)
    assert digest_json(value) == digest_json(backwards)


@given(data=st.binary(max_size=100), cut=st.integers(0, 100))
def test_digest_of_parts_is_that_of_the_whole(data: bytes, cut: int) -> None:
    assert digest_bytes(data) == digest_bytes(data[:cut], data[cut:])


def test_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    (tmp_path / "file").write_bytes(content)
    assert digest_file(tmp_path / "file") == digest_bytes(content)


def test_no_nan_in_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "file", float("nan"))
    assert list(tmp_path.iterdir()) == []


def test_lone_surrogates_have_a_digest() -> None:
    assert digest_json("\ud800") != digest_json("\ud801")


@given(content=st.dictionaries(st.text(max_size=3), json_values), data=st.data())
def test_a_sealed_artifact_is_what_was_written_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, object], data: st.DataObject
) -> None:
    content.pop("xxh3", None)
    path = tmp_path_factory.getbasetemp() / "sealed.json"
    write_sealed(path, content)
    assert read_json(path) == content
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    try:
        read = read_json(path)
    except ContractError:
        return
    # White space, or the name of the digest itself: the content is the same.
    assert {key: read[key] for key in content} == content and len(read) <= len(content) + 1


def test_a_sealed_artifact_keeps_tuples_and_numbers_as_keys(tmp_path: Path) -> None:
    write_sealed(tmp_path / "a.json", {"counts": {10: (1, 2), 9: 0.1}})
    assert read_json(tmp_path / "a.json") == {"counts": {"10": [1, 2], "9": 0.1}}


def test_json_that_is_nested_too_deeply_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ContractError, match="is not JSON"):
        read_json(path)


@pytest.mark.parametrize("name", ["", ".", "/etc/passwd", "..", "a/../../b", "../a", "a\0b"])
def test_names_that_leave_their_folder(name: str) -> None:
    assert not is_inside(name)


@given(name=st.text(st.sampled_from("ab./\\"), max_size=8))
def test_whatever_is_inside_stays_inside(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "work"
    if is_inside(name):
        assert Path(os.path.normpath(folder / name)).is_relative_to(folder)
