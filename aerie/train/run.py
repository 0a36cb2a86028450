"""One training run, from states and a map to a draft checkpoint."""

import logging
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from aerie.contracts.draft import DraftConfig, check_draft, write_draft
from aerie.contracts.layers import Layers
from aerie.contracts.sidecar import write_sidecar
from aerie.contracts.vocab import VocabMap, read_vouched_map
from aerie.files import canonical_json, digest_file, replacing, write_json
from aerie.target import Target, read_target
from aerie.train.ranks import join
from aerie.train.settings import DraftSettings, TrackingSettings
from aerie.train.source import TrainingSource
from aerie.train.start import draft_config, freeze
from aerie.train.trackers import makers
from aerie.train.tracking import Tracking
from aerie.train.trainer import Trainer

log = logging.getLogger("aerie")


def train(
    settings: DraftSettings,
    source: TrainingSource,
    map_sidecar: Path,
    target_sidecar: Path,
    checkpoints: Path,
    out: Path,
    tracking: Path | None = None,
    until: int | None = None,
) -> None:
    """Train a draft and write its folder; `out` is its sidecar, `draft.json`, written last.

    With `tracking`, a folder, the run can be watched as the section `tracking` says. With `until`,
    a step, it ends after that one with a checkpoint, and it is for the caller to remove those.

    Raises:
        ConfigError: a package that tracking needs is not installed.
        ContractError: an input is damaged, or its parts were captured with different layers or
            codecs.
        GateError: the draft gate.
        Preempted: the process was told to end; a second run continues.
    """
    shown = Tracking(
        makers(TrackingSettings.from_environment(), tracking, tracking.name, settings.model_dump())
        if tracking
        else {}
    )
    target, vocab = read_target(target_sidecar), read_vouched_map(map_sidecar)
    config = draft_config(target, settings, vocab, source.layers)
    with join() as ranks, closing(shown):
        frozen = freeze(target, vocab, getattr(torch, settings.dtype), ranks.device)
        contract = run_contract(settings, config, target, map_sidecar, source, ranks.world)
        trainer = Trainer(
            settings, config, frozen, source.samples, checkpoints, contract, ranks, shown
        )
        log.info(
            "training on %d samples, %d held out; %d steps of at most %d tokens, on %d x %s",
            len(trainer.training), len(trainer.held_out), len(trainer.schedule),
            settings.pack_tokens * settings.accumulate * ranks.world, ranks.world, ranks.device,
        )  # fmt: skip
        if trainer.run(until) and ranks.leads:
            _write(trainer, vocab, target, source.layers, out)
            if until is None:
                # Kept until here, so that a kill during the export repeats the export and no step.
                shutil.rmtree(checkpoints, ignore_errors=True)


def run_contract(
    settings: DraftSettings, config: DraftConfig, target: Target, map_sidecar: Path,
    source: TrainingSource, world: int,
) -> dict[str, Any]:  # fmt: skip
    """What a checkpoint must have been written for, if a run of `world` processes is to go on from
    it.
    """
    return {
        "draft": config.as_json(),
        "target": target.revision,
        "map": digest_file(map_sidecar.with_name("map.safetensors")),
        "states": source.states,
        "settings": settings.recipe(world),
    }


def _write(trainer: Trainer, vocab: VocabMap, target: Target, layers: Layers, out: Path) -> None:
    folder, settings = out.parent, trainer.settings
    weights = {name: value.bfloat16().cpu() for name, value in trainer.layout.weights.named.items()}
    maps = {"d2t": torch.from_numpy(vocab.d2t), "t2d": torch.from_numpy(vocab.t2d)}
    files = write_draft(folder, trainer.layout.weights.config, weights | maps)
    check_draft(folder, target.max_position)
    files += [folder / "train.jsonl", folder / "eval.json"]
    with replacing(files[2]) as scratch:
        lines = [canonical_json(record) + "\n" for record in trainer.state["records"]]
        scratch.write_text("".join(lines), encoding="utf-8")
    write_json(files[3], {"k": settings.steps, "epochs": trainer.state["epochs"]})
    provenance = _provenance(trainer, layers) | {"exported": trainer.exported}
    write_sidecar(out, "draft", files, _counts(trainer), provenance)


def _counts(trainer: Trainer) -> dict[str, Any]:
    return {
        "parameters": sum(view.numel() for view in trainer.layout.weights.named.values()),
        "steps": trainer.state["step"],
        "supervised": trainer.state["supervised"],
        "samples": len(trainer.training),
        "held_out": len(trainer.held_out),
    }


def _provenance(trainer: Trainer, layers: Layers) -> dict[str, Any]:
    contract = trainer.state["contract"]
    return {
        "settings": trainer.settings.model_dump(mode="json"),
        "target": contract["target"],
        "map": contract["map"],
        "states": contract["states"],
        "layers": layers.as_dict(),
    }
