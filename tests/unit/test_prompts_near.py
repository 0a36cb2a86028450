"""Signatures, near duplicates and contamination against plain Python."""

import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.errors import DataError
from aerie.files import digest_json
from aerie.prompts.codepoints import CodePoints
from aerie.prompts.contamination import Contamination, gram_hashes, read_benchmark
from aerie.prompts.near import near_earlier, near_other, signatures, similarity
from aerie.prompts.text import fold
from tests.unit.prompts_fixtures import write_jsonl

texts = st.lists(st.text(st.sampled_from("ab _-é漢 1\U0001f985"), max_size=14), max_size=6)


def salts(count: int) -> np.ndarray:
    return np.zeros(count, np.uint64)


@given(texts)
def test_shingles_are_those_of_each_text_alone(found: list[str]) -> None:
    hashes, offsets = CodePoints.of(found, 4).shingles(5)
    seen: dict[int, str] = {}
    for text, start, stop in zip(found, offsets[:-1], offsets[1:], strict=True):
        expected = [text[at : at + 5] for at in range(max(len(text) - 4, 1))] if text else []
        own = hashes[int(start) : int(stop)].tolist()
        assert len(own) == len(expected)
        for value, shingle in zip(own, expected, strict=True):
            assert seen.setdefault(value, shingle) == shingle
    assert len(set(seen.values())) == len(seen)


@given(texts)
def test_words_are_those_of_the_regular_expression(found: list[str]) -> None:
    hashes, owners = CodePoints.of(found, 1).words()
    expected = [(word, n) for n, text in enumerate(found) for word in re.findall(r"\w+", text)]
    assert owners.tolist() == [owner for _, owner in expected]
    known: dict[str, int] = {}
    for value, (word, _) in zip(hashes.tolist(), expected, strict=True):
        assert known.setdefault(word, value) == value
    assert len(set(known.values())) == len(known)


def jaccard(left: str, right: str) -> float:
    one, two = ({text[at : at + 5] for at in range(len(text) - 4)} for text in (left, right))
    return len(one & two) / len(one | two)


def sentences(count: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    words = [digest_json(n)[: 3 + n % 7] for n in range(2000)]
    return [" ".join(chosen.choices(words, k=40)) for _ in range(count)]


def edited(text: str, every: int, seed: int) -> str:
    chosen = random.Random(seed)
    return " ".join("edit" if chosen.random() < 1 / every else word for word in text.split())


def test_similarity_is_the_jaccard_index() -> None:
    one = sentences(200, 0)
    two = [edited(text, every, every) for every, text in enumerate(one, 3)]
    found = [signatures(texts, salts(200)) for texts in (one, two)]
    guess = similarity(found[0].bits, found[1].bits)
    exact = np.array([jaccard(*pair) for pair in zip(one, two, strict=True)])
    assert exact.min() < 0.6 < 0.9 < exact.max()
    # 128 values: a standard error of 0.044 at most.
    assert np.abs(guess - exact).mean() < 0.04
    assert np.abs(guess - exact).max() < 0.17


def test_planted_edits_are_found_and_nothing_else() -> None:
    """One word in 40 edited: the reference's recall for char-5, 0.7 and 32 bands is 0.979."""
    originals = sentences(600, 1)
    copies = [edited(text, 40, n) for n, text in enumerate(originals)]
    near = [n for n in range(600) if jaccard(originals[n], copies[n]) >= 0.75]
    found = signatures([*originals, *copies], salts(1200))
    rows, earlier = near_earlier(np.ascontiguousarray(found.bands.T), found.bits)
    hits = {row - 600: first for row, first in zip(rows.tolist(), earlier.tolist(), strict=True)}
    assert all(row >= 0 and first == row for row, first in hits.items())
    assert len(hits.keys() & set(near)) / len(near) > 0.97
    one, two = (signatures(half, salts(600)) for half in (originals, copies))
    rows, theirs = near_other(two.bands.T, two.bits, one.bands.T, one.bits)
    assert (rows == theirs).all() and set(rows.tolist()) == hits.keys()


def test_another_system_text_leaves_nothing_in_common() -> None:
    text = sentences(1, 2) * 2
    found = signatures(text, np.array([0, 7], np.uint64))
    assert not (found.bands[0] == found.bands[1]).any()
    assert similarity(found.bits[:1], found.bits[1:])[0] < 0.1


def test_no_rows() -> None:
    found = signatures([], salts(0))
    assert found.bands.shape == (0, 32) and found.bits.shape == (0, 128)
    assert [len(part) for part in near_earlier(found.bands.T, found.bits)] == [0, 0]
    one = signatures(["a heap"], salts(1))
    assert [len(p) for p in near_other(one.bands.T, one.bits, found.bands.T, found.bits)] == [0, 0]


BAKER = (
    "A baker has 14 trays with 9 rolls each and sells three quarters of them before noon; "
    "how many rolls are left?"
)


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        (BAKER, True),
        (f"Think!\n\n{BAKER.upper()} Step by step.", True),
        (re.sub(r"[^\w]+", " -- ", BAKER), True),
        (" ".join(BAKER.split()[:13]), True),
        (" ".join(BAKER.split()[:12]), False),
        (BAKER.replace("quarters", "fifths"), False),
        ("", False),
    ],
)
def test_thirteen_words_in_a_row(text: str, hit: bool) -> None:
    contamination = Contamination([("made-up", BAKER.replace("how many rolls are left", "x"))])
    assert contamination.overlap(text) == ("made-up" if hit else None)


def test_runs_of_digits_are_no_overlap() -> None:
    digits = "Sum " + " ".join(map(str, range(1, 17)))
    assert Contamination([("digits", digits)]).overlap(digits) is None
    letters = "sum all of the numbers 1 2 3 4 5 6 7 8 9 10"
    assert Contamination([("letters", letters)]).overlap(letters) == "letters"


@given(st.lists(st.lists(st.sampled_from("abc1"), max_size=30).map(" ".join), max_size=5))
def test_many_texts_at_once_are_judged_as_alone(found: list[str]) -> None:
    contamination = Contamination([("x", " ".join("abcabcabcabcabc")), ("y", "a " * 14)])
    alone = [contamination.overlap(text) for text in found]
    assert list(contamination.overlaps([fold(text) for text in found])) == alone
    assert len(gram_hashes(found)[0]) == sum(max(len(text.split()) - 12, 0) for text in found)


def test_no_benchmarks() -> None:
    assert list(Contamination([]).overlaps(["a", "b"])) == [None, None]


def test_shapes_of_benchmark_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = [
        {"bench": "b", "prompt": "one"},
        {"turns": ["two", "three"]},
        {"messages": [{"role": "user", "content": "four"}, {"role": "assistant", "content": "x"}]},
        {"question": [{"role": "user", "content": "five"}]},
        {"problem_statement": "six"},
    ]
    file = write_jsonl(tmp_path / "suite.jsonl", rows)
    assert read_benchmark(file) == [
        ("b", "one"),
        ("suite", "two\nthree"),
        ("suite", "four"),
        ("suite", "five"),
        ("suite", "six"),
    ]
    for bad in ("{", "[]", '{"text": "x"}', '{"prompt": 3}'):
        file.write_text(bad + "\n")
        with pytest.raises(DataError, match="line 1"):
            read_benchmark(file)
    with pytest.raises(DataError, match="cannot be read"):
        read_benchmark(tmp_path / "none.jsonl")
