"""Which answers of a journal are nowhere else."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aerie.contracts.sidecar import damage, read_sidecar
from aerie.errors import ContractError
from aerie.responses.journal import read_line

_COLUMNS = ["request_digest", "output_ids", "finish_reason"]
_Answer = tuple[tuple[int, ...], str]


def only_copies(journal: Path, responses: Path) -> int:
    """How many answers of `journal` are in no whole table of the folder `responses`.

    Both are paths without links: a table behind one may belong to another build.
    Lines that cannot be read count: nothing says what they held.
    """
    answers, unreadable = _journalled(journal)
    digests = pa.array(sorted(answers), pa.string())
    for table in _whole_tables(responses):
        if not answers:
            break
        rows = pq.read_table(table, columns=_COLUMNS)
        for row in rows.filter(pc.is_in(rows["request_digest"], digests)).to_pylist():
            digest, answer = row["request_digest"], (tuple(row["output_ids"]), row["finish_reason"])
            if answers.get(digest) == answer:
                del answers[digest]
    return len(answers) + unreadable


def _journalled(journal: Path) -> tuple[dict[str, _Answer], int]:
    """The answers by digest, the first of each as `Journal` takes it, and the unreadable lines."""
    answers: dict[str, _Answer] = {}
    unreadable = 0
    with journal.open("rb") as stream:
        for line in stream:
            try:
                digest, answer = read_line(line)
                answers.setdefault(digest, (tuple(answer.output_ids), answer.finish_reason))
            except ValueError:
                unreadable += 1
    return answers, unreadable


def _whole_tables(responses: Path) -> list[Path]:
    """Tables whose bytes are those that their sidecar was written for. Links are not followed."""
    found: list[Path] = []
    if responses.resolve() != responses:
        return found
    for sidecar in sorted(responses.glob("*.json")):
        try:
            names = read_sidecar(sidecar, "responses")["files"]
        except ContractError:
            continue
        if not damage(sidecar):
            found += [
                sidecar.parent / name for name in names if not (sidecar.parent / name).is_symlink()
            ]
    return found
