"""Benchmark prompts inside training prompts: runs of 13 words that both of them hold.

Eight words gave 27 false hits between HumanEval and ShareGPT, mostly runs of digits, and 13 gave
one (measured, docs/prompts.md); so a run counts only if four of its words hold a letter.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from aerie.prompts.benchmarks import asked, read_rows
from aerie.prompts.codepoints import Array, CodePoints, mix
from aerie.prompts.text import fold

WORDS = 13
LEAST_ALPHABETIC = 4
_WORD = re.compile(r"\w+")
_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
# A table of 2^20 bits answers for nearly every run that no benchmark has it.
_TABLE = np.uint64((1 << 20) - 1)


def read_benchmark(path: Path) -> list[tuple[str, str]]:
    """Name and text of all prompts of a benchmark; a name is the row's `bench` or the file's.

    Raises:
        DataError: the file is missing, or a row of it is in no shape that is known.
    """
    return [
        (str(row.get("bench", path.stem)), asked(row, where).text) for where, row in read_rows(path)
    ]


class Contamination:
    """Knows the 13-grams of benchmark prompts."""

    def __init__(self, texts: Iterable[tuple[str, str]]) -> None:
        """`texts` are pairs of the benchmark's name and one prompt of it."""
        self._names: dict[str, str] = {}
        for name, text in texts:
            for gram in _grams(text):
                self._names.setdefault(gram, name)
        known, _ = gram_hashes(list(self._names))
        self._hashes = np.unique(known)
        self._table = np.zeros(int(_TABLE) + 1, np.bool_)
        self._table[(self._hashes & _TABLE).astype(np.int64)] = True

    def overlap(self, text: str) -> str | None:
        """The first benchmark with which `text` has a run of words in common."""
        return next(self.overlaps([fold(text)]))

    def overlaps(self, folded: Sequence[str]) -> Iterator[str | None]:
        """The same for many texts that `aerie.prompts.text.fold` has folded."""
        if not self._names:
            yield from (None for _ in folded)
            return
        hashes, owners = gram_hashes(folded)
        likely = self._table[(hashes & _TABLE).astype(np.int64)]
        found = hashes[likely]
        at = np.minimum(np.searchsorted(self._hashes, found), len(self._hashes) - 1)
        suspects = set(owners[likely][self._hashes[at] == found].tolist())
        for number, text in enumerate(folded):
            # A hash says where to look; the words themselves decide.
            grams = _grams(text) if number in suspects else ()
            yield next((self._names[gram] for gram in grams if gram in self._names), None)


def gram_hashes(folded: Sequence[str]) -> tuple[Array, Array]:
    """Hashes uint64 [G] of all runs of 13 words, and the index of each one's text, int64 [G]."""
    words, owners = CodePoints.of(folded, 1).words()
    count = max(len(words) - WORDS + 1, 0)
    hashes = words[:count].copy()
    for place in range(1, WORDS):
        hashes *= _MULTIPLIER
        hashes += words[place : place + count]
    whole = owners[:count] == owners[WORDS - 1 : WORDS - 1 + count]
    return mix(hashes[whole]), owners[:count][whole]


def _grams(text: str) -> Iterator[str]:
    words = _WORD.findall(fold(text))
    for start in range(len(words) - WORDS + 1):
        gram = words[start : start + WORDS]
        if sum(any(map(str.isalpha, word)) for word in gram) >= LEAST_ALPHABETIC:
            yield " ".join(gram)
