"""One point of a study: a draft on a fraction of the data, and what it reached.

The states are those of the build, read where they lie. The draft itself is not kept.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.contracts import VERSIONS
from aerie.contracts.sidecar import read_sidecar
from aerie.errors import DataError
from aerie.files import digest_file, digest_json, write_sealed
from aerie.scaling.fractions import nested, prompt_of
from aerie.states.manifest import read_manifest
from aerie.train.settings import DraftSettings

if TYPE_CHECKING:
    from aerie.train.data import Located
    from aerie.train.tally import Tally

log = logging.getLogger("aerie")


def train_point(
    settings: DraftSettings,
    divisor: int,
    manifest: Path,
    map_sidecar: Path,
    target_sidecar: Path,
    checkpoints: Path,
    out: Path,
    without: str | None = None,
) -> None:
    """Train a draft on 1/`divisor` of each dataset and write what it reached. Resumes.

    The recipe, held-out samples and seed of the split are those of `settings`. `without` is a
    dataset that it does not see.

    Raises:
        ContractError: an input is damaged.
        DataError: no sample is left.
        GateError: the draft gate.
        Preempted: the process was told to end; a second run continues.
    """
    import torch

    from aerie.contracts.layers import Layers
    from aerie.contracts.vocab import read_vouched_map
    from aerie.target import read_target
    from aerie.train.data import locate, split
    from aerie.train.ranks import join
    from aerie.train.start import draft_config, freeze
    from aerie.train.trainer import Trainer

    target = read_target(target_sidecar)
    vocab = read_vouched_map(map_sidecar)
    indexes = read_manifest(manifest)
    layers = Layers(tuple(read_sidecar(indexes[0], "states")["layers"]["hf_hidden_states"]))
    training, held_out = split(locate(indexes), settings.eval_share)
    chosen = [sample for sample in nested(training, divisor) if sample.dataset != without]
    if not chosen:
        raise DataError(
            f"nothing is left to train on without {without}",
            expected="samples of two datasets at least",
            remedy="a mix of one dataset has no mix to study",
        )
    left_out = {} if without is None else {"without": without}
    provenance = _provenance(settings, manifest, map_sidecar, target.revision)
    config = draft_config(target, settings, vocab, layers)
    with join() as ranks:
        frozen = freeze(target, vocab, getattr(torch, settings.dtype), ranks.device)
        contract = provenance | {"divisor": divisor, "ranks": ranks.world} | left_out
        trainer = Trainer(
            settings, config, frozen, [*chosen, *held_out], checkpoints, contract, ranks
        )
        log.info("training on %d of %d samples", len(trainer.training), len(training))
        trainer.run()
        if ranks.leads:
            tallies = _walk(trainer.layout.weights, frozen, held_out, settings, ranks.device)
            counts = {"steps": trainer.state["step"], "supervised": trainer.state["supervised"]}
            which = {"divisor": divisor, "seed": settings.seed, **left_out}
            _write(out, which, chosen, held_out, tallies, counts, provenance)
            shutil.rmtree(checkpoints, ignore_errors=True)


def judge_draft(
    settings: DraftSettings,
    manifest: Path,
    map_sidecar: Path,
    target_sidecar: Path,
    draft_sidecar: Path,
    out: Path,
) -> None:
    """The point of all data: the draft that the build has made, judged as the others are.

    Raises:
        ContractError: an input is damaged.
    """
    import torch

    from aerie.contracts.draft import read_draft
    from aerie.contracts.vocab import read_vouched_map
    from aerie.target import read_target
    from aerie.train.data import locate, split
    from aerie.train.start import freeze
    from aerie.train.weights import Weights

    target = read_target(target_sidecar)
    vocab = read_vouched_map(map_sidecar)
    training, held_out = split(locate(read_manifest(manifest)), settings.eval_share)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = getattr(torch, settings.dtype)
    config, tensors = read_draft(draft_sidecar.parent)
    numbers = {name: value for name, value in tensors.items() if name not in ("d2t", "t2d")}
    weights = Weights.of(config, {name: v.to(device, dtype) for name, v in numbers.items()})
    tallies = _walk(weights, freeze(target, vocab, dtype, device), held_out, settings, device)
    counts = read_sidecar(draft_sidecar, "draft")["counts"]
    counts = {name: counts[name] for name in ("steps", "supervised")}
    provenance = _provenance(settings, manifest, map_sidecar, target.revision)
    which = {"divisor": 1, "seed": settings.seed}
    _write(out, which, training, held_out, tallies, counts, provenance)


def _walk(
    weights: Any, frozen: Any, held_out: "Sequence[Located]", settings: DraftSettings, device: Any
) -> "list[Tally]":
    from aerie.train.data import packs_in_order
    from aerie.train.evaluate import simulate

    packs = (pack.to(device) for pack in packs_in_order(held_out, settings.pack_tokens))
    return simulate(weights, frozen.embedding, frozen.draft_ids, packs, settings.steps)


def _provenance(
    settings: DraftSettings, manifest: Path, map_sidecar: Path, target: str
) -> dict[str, Any]:
    recipe = settings.model_dump(mode="json", exclude={"seed"})
    return {
        "recipe": digest_json(recipe),
        "target": target,
        "map": digest_file(map_sidecar.with_name("map.safetensors")),
        "states": digest_json(read_sidecar(manifest, "manifest")["files"]),
    }


def _write(
    out: Path,
    which: dict[str, Any],
    chosen: "Sequence[Located]",
    held_out: "Sequence[Located]",
    tallies: "Sequence[Tally]",
    counts: dict[str, int],
    provenance: dict[str, str],
) -> None:
    """Write a point: what it was trained on, and the rounds of each held-out sample."""
    content = {
        "artifact": "scaling",
        "contract": VERSIONS["scaling"],
        **which,
        "counts": {
            "samples": len(chosen),
            "datasets": dict(sorted(Counter(sample.dataset for sample in chosen).items())),
            **counts,
        },
        "provenance": provenance,
        "held_out": [
            {
                "prompt": prompt_of(sample.id),
                "dataset": sample.dataset,
                "rounds": tally.rounds,
                "accepted": tally.accepted,
            }
            for sample, tally in zip(held_out, tallies, strict=True)
        ],
    }
    write_sealed(out, content)
