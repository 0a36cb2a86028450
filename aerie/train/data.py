"""The samples of a training run: where they lie, which are held out, and how packs are read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import xxhash
from torch import Tensor

from aerie.contracts.sidecar import described, read_sidecar
from aerie.contracts.states import StatesFile, Stretch
from aerie.errors import ContractError, DataError
from aerie.train.packing import Pack, fill_pack

_CHECKED_FIRST = ("token_ids", "loss_mask", "offsets", "sample_xxh3")


@dataclass(frozen=True)
class Located:
    """One sample inside a states file; `rows` is what it adds to a pack, `answer` how many of them
    are supervised. A `Source` of packs.
    """

    id: str
    dataset: str
    file: Path
    index: int
    rows: int
    answer: int

    @property
    def length(self) -> int:
        """Its tokens."""
        return self.rows + 2

    @property
    def like(self) -> Mapping[str, Tensor]:
        """No row of each of its tensors, as they are stored."""
        return open_states(self.file).like

    def read(self, into: Mapping[str, Stretch]) -> None:
        """Read rows of its tensors to where they stay.

        Raises:
            ContractError: the sample is not what was written.
        """
        open_states(self.file).read(self.index, into)


def locate(indexes: Iterable[Path]) -> list[Located]:
    """Every sample of the given `states/<dataset>/<part>/index.json`, in their order.

    Samples without a supervised row (fewer than two output tokens) are left out.

    Raises:
        ContractError: an index or a states file is missing or damaged.
    """
    located = []
    for index in indexes:
        dataset = index.parent.parent.name
        for name, entry in described(index, read_sidecar(index, "states")).items():
            file = index.parent / name
            states, ids = open_states(file), entry.get("samples")
            same = states.metadata.get("key") == entry.get("key")
            if not same or not isinstance(ids, list) or len(ids) != len(states):
                raise ContractError(
                    f"{index} names other samples than {file} holds",
                    remedy=f"remove {index} and run the build again: whole files are kept",
                )
            # Samples are checked when they are read. Where they begin and what is supervised is
            # known now, and is a ten-thousandth of the file.
            if damaged := states.damaged_tensors(_CHECKED_FIRST):
                raise ContractError(
                    f"{file}: {', '.join(damaged)} changed since it was written",
                    remedy="run `make verify ARGS=--repair`, then the build: only this is redone",
                )
            answers = _answers(states.offsets, states.column("loss_mask"))
            for number, (sample, answer) in enumerate(zip(map(str, ids), answers, strict=True)):
                rows = states.offsets[number + 1] - states.offsets[number] - 2
                if answer:
                    located.append(Located(sample, dataset, file, number, rows, answer))
    return located


def _answers(offsets: Sequence[int], loss_mask: Tensor) -> list[int]:
    """Supervised rows of each sample, without reading one by one."""
    pairs = (loss_mask[:-1] & loss_mask[1:]).long().cumsum(0).tolist()
    return [
        pairs[end - 2] - pairs[start] if end - start > 2 else 0 for start, end in pairwise(offsets)
    ]


def split(samples: Sequence[Located], held_out_share: float) -> tuple[list[Located], list[Located]]:
    """Training and held-out samples, decided by the prompt's id alone.

    The turns of one conversation stay together, and a sample keeps its side when data grows.

    Raises:
        DataError: one of the two is empty.
    """
    training: list[Located] = []
    held_out: list[Located] = []
    for sample in samples:
        (held_out if is_held_out(sample.id, held_out_share) else training).append(sample)
    if not training or not held_out:
        raise DataError(
            "there are too few samples to train on some and hold some out",
            saw=f"{len(training)} to train on, {len(held_out)} held out",
            remedy="raise `take` of the datasets, or `eval_share` of the draft",
        )
    return training, held_out


def is_held_out(sample: str, share: float) -> bool:
    """Whether the sample of this id is one of those that are held out, about `share` of all."""
    prompt = sample.rpartition(".")[0]
    return xxhash.xxh3_64_intdigest(prompt.encode()) / 2**64 < share


@lru_cache(maxsize=256)
def open_states(file: Path) -> StatesFile:
    """The file, kept open."""
    return StatesFile(file)


def read_pack(samples: Sequence[Located], rows_at_least: int = 0, pinned: bool = False) -> Pack:
    """Read the samples and lay them back to back, padded to `rows_at_least`.

    States are as they are stored: `Pack.to` decodes them, where they are needed.
    """
    return fill_pack(samples, rows_at_least, pinned)


def packs_in_order(samples: Sequence[Located], budget: int) -> Iterator[Pack]:
    """All samples once, in their order, in packs of at most `budget` rows."""
    pack: list[Located] = []
    for sample in samples:
        if pack and sum(each.rows for each in pack) + sample.rows > budget:
            yield read_pack(pack, budget)
            pack = []
        pack.append(sample)
    if pack:
        yield read_pack(pack, budget)
