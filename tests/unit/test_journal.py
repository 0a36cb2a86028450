"""The journal: what was paid for is kept, whatever happens to the process."""

from pathlib import Path

from aerie.engines.base import Answer
from aerie.responses.journal import Journal

A, B = Answer([5, 6, 2], "stop"), Answer([7, 8], "length")


def test_answers_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal.jsonl"
    with Journal(path) as journal:
        journal.add([("a", A), ("b", B)])
    with Journal(path) as journal:
        assert journal.answers == {"a": A, "b": B}


def test_first_answer_wins(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.add([("a", A)])
        journal.add([("a", B), ("b", B)])
        assert journal.answers == {"a": A, "b": B}
    assert len(path.read_bytes().splitlines()) == 2
    path.write_bytes(path.read_bytes() + path.read_bytes().replace(b"5, 6", b"9, 9"))
    with Journal(path) as journal:
        assert journal.answers["a"] == A


def test_torn_last_line_is_dropped_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.add([("a", A)])
        whole = path.read_bytes()
        journal.add([("b", B)])
    both = path.read_bytes()
    for cut in range(len(whole), len(both)):
        path.write_bytes(both[:cut])
        with Journal(path) as journal:
            assert journal.answers == {"a": A}
            journal.add([("b", B)])
        assert path.read_bytes() == both


def test_damaged_line_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.add([("a", A), ("b", B)])
    first, second = path.read_bytes().splitlines(keepends=True)
    for bad in (b"\x00\x00\n", b"[]\n", b'{"digest": "a"}\n', b"3\n", first[9:]):
        path.write_bytes(bad + second)
        with Journal(path) as journal:
            assert journal.answers == {"b": B}
