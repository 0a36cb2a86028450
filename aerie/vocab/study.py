"""What the size of the map costs and gains: coverage, accept length lost, time of the head.

A smaller map is tried on the draft that is there: its head loses the rows, nothing is trained
again, and the held-out samples are walked anew. A draft trained with the smaller map may do a
little better. For a larger map there is no draft; its coverage says how high AL could rise.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from aerie.bench.accept import pair, rounded
from aerie.bench.breakeven import ceiling
from aerie.bench.statistics import Bootstrap, Floats
from aerie.contracts import VERSIONS
from aerie.contracts.sidecar import read_whole
from aerie.contracts.vocab import VocabMap, read_counts, read_vouched_map
from aerie.files import write_sealed
from aerie.scaling.fractions import prompt_of
from aerie.scaling.settings import MapStudySettings
from aerie.states.manifest import read_manifest
from aerie.target import read_target
from aerie.train.settings import DraftSettings
from aerie.vocab.map import build_map, coverage, kept_ids

if TYPE_CHECKING:
    from aerie.train.data import Located

log = logging.getLogger("aerie")

_TIMED = 20
_HEAD_BYTES = 2


@dataclasses.dataclass(frozen=True)
class Walked:
    """Accepted draft tokens and rounds of each held-out prompt, float64 [n], and its dataset."""

    datasets: tuple[str, ...]
    accepted: Floats
    rounds: Floats

    def of(self, dataset: str) -> "Walked":
        """The prompts of one dataset."""
        some = np.array([name == dataset for name in self.datasets])
        names = tuple(name for name in self.datasets if name == dataset)
        return Walked(names, self.accepted[some], self.rounds[some])


def write_study(
    settings: MapStudySettings,
    recipe: DraftSettings,
    manifest: Path,
    map_sidecar: Path,
    counts: Sequence[Path],
    target_sidecar: Path,
    draft_sidecar: Path,
    out: Path,
) -> None:
    """Compare sizes of the map and write `map_study.json`.

    Raises:
        ContractError: an input is damaged.
    """
    target = read_target(target_sidecar)
    own = read_vouched_map(map_sidecar)
    datasets = {}
    for path in counts:
        read_whole(path, "counts")
        datasets[path.stem] = read_counts(path.with_suffix(".safetensors"))
    total = sum(datasets.values(), np.zeros(target.vocab_size, dtype=np.int64))
    kept = kept_ids(target, target.tokenizer())
    walk = Walker(recipe, manifest, target_sidecar, draft_sidecar)
    whole = walk.walk(own)
    least = len(kept)
    sizes = {len(own.target_ids), target.vocab_size, *settings.sizes}
    entries = []
    for size in sorted(size for size in sizes if least <= size <= target.vocab_size):
        vocab = own if size == len(own.target_ids) else build_map(total, kept, size)
        covered = coverage(vocab, datasets, str)
        shares = {name: entry["coverage"] for name, entry in covered["datasets"].items()}
        walked = walk.walk(vocab) if size <= len(own.target_ids) else None
        entries.append(
            {
                "size": size,
                "coverage": rounded(covered["overall"]),
                "ceiling": rounded(ceiling(covered["overall"], recipe.steps)),
                "head_bytes": size * target.hidden_size * _HEAD_BYTES,
                "head_seconds": head_seconds(size, target.hidden_size),
                **lost(whole, walked),
                "datasets": {
                    name: {"coverage": rounded(share)}
                    | lost(whole.of(name), walked.of(name) if walked else None)
                    for name, share in shares.items()
                },
            }
        )
        log.info("map of %d: coverage %.4f, %s", size, covered["overall"], _words(entries[-1]))
    content = {"artifact": "map_study", "contract": VERSIONS["map_study"]}
    write_sealed(out, content | {"own": len(own.target_ids), "k": recipe.steps, "sizes": entries})


def lost(whole: Walked, walked: Walked | None) -> dict[str, Any]:
    """AL of a smaller map, and what it loses against the draft's own, paired by prompt."""
    names = ("accept_length", "accept_length_ci95", "lost", "lost_ci95")
    if walked is None or not walked.rounds.sum():
        return dict.fromkeys(names)
    bootstrap = Bootstrap(len(walked.rounds))
    before, after = (1 + w.accepted.sum() / w.rounds.sum() for w in (whole, walked))
    columns = (w.tolist() for w in (whole.accepted, whole.rounds, walked.accepted, walked.rounds))
    loss = bootstrap.interval(lambda a, b, c, d: a / b - c / d, *columns)
    length = bootstrap.interval(
        lambda a, r: 1 + a / r, walked.accepted.tolist(), walked.rounds.tolist()
    )
    values = (rounded(float(after)), pair(length), rounded(float(before - after)), pair(loss))
    return dict(zip(names, values, strict=True))


class Walker:
    """Walks the held-out samples with the draft, its head cut to a map."""

    def __init__(
        self, recipe: DraftSettings, manifest: Path, target_sidecar: Path, draft_sidecar: Path
    ) -> None:
        import torch

        from aerie.contracts.draft import read_draft
        from aerie.target_weights import read_embedding
        from aerie.train.data import locate, split

        self._recipe = recipe
        self._dtype: torch.dtype = getattr(torch, recipe.dtype)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._config, tensors = read_draft(draft_sidecar.parent)
        places = torch.arange(len(tensors["d2t"]))
        self._ids = tensors.pop("d2t") + places
        del tensors["t2d"]
        self._tensors = {n: v.to(self._device, self._dtype) for n, v in tensors.items()}
        embedding = read_embedding(read_target(target_sidecar))
        self._embedding = embedding.to(self._device, self._dtype)
        self._held_out: list[Located] = split(locate(read_manifest(manifest)), recipe.eval_share)[1]

    def walk(self, vocab: VocabMap) -> Walked:
        """The walk of every held-out prompt, without the rows of the head outside of `vocab`."""
        import torch

        from aerie.train.data import packs_in_order
        from aerie.train.evaluate import simulate
        from aerie.train.weights import Weights

        rows = torch.from_numpy(vocab.t2d)[self._ids].nonzero()[:, 0]
        head = self._tensors["lm_head.weight"][rows.to(self._device)]
        config = dataclasses.replace(self._config, draft_vocab_size=len(rows))
        weights = Weights.of(config, self._tensors | {"lm_head.weight": head})
        draft_ids = torch.full((vocab.vocab_size,), -1, dtype=torch.int64)
        draft_ids[self._ids[rows]] = torch.arange(len(rows))
        packs = (
            pack.to(self._device)
            for pack in packs_in_order(self._held_out, self._recipe.pack_tokens)
        )
        ids, steps = draft_ids.to(self._device), self._recipe.steps
        sums: dict[str, list[Any]] = {}
        tallies = simulate(weights, self._embedding, ids, packs, steps)
        for sample, tally in zip(self._held_out, tallies, strict=True):
            entry = sums.setdefault(prompt_of(sample.id), [sample.dataset, 0, 0])
            entry[1] += sum(tally.accepted)
            entry[2] += tally.rounds
        return Walked(
            tuple(entry[0] for entry in sums.values()),
            np.array([entry[1] for entry in sums.values()], dtype=np.float64),
            np.array([entry[2] for entry in sums.values()], dtype=np.float64),
        )


def head_seconds(size: int, hidden: int) -> float:
    """Seconds of the head's product for one draft token at batch 1 on this machine, the median."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    state = torch.randn(1, hidden, device=device, dtype=torch.bfloat16)
    head = torch.randn(size, hidden, device=device, dtype=torch.bfloat16)
    seconds = []
    for _ in range(_TIMED):
        start = time.perf_counter()
        # Read back, as a draft must know its token before it can guess the next one.
        int((state @ head.T).argmax())
        seconds.append(time.perf_counter() - start)
    return median(seconds[2:])


def _words(entry: dict[str, Any]) -> str:
    if entry["lost"] is None:
        return f"accept length at most {entry['ceiling']:.2f}"
    return f"accept length {entry['accept_length']:.3f}, {entry['lost']:.3f} lost"
