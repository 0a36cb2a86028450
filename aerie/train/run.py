"""One training run, from states and a map to a draft checkpoint. Resumes at any step."""

import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aerie.config import DraftSettings
from aerie.contracts.draft import DraftConfig, check_draft, write_draft
from aerie.contracts.sidecar import read_sidecar, write_sidecar
from aerie.contracts.states import Layers
from aerie.contracts.vocab import VocabMap, read_map
from aerie.errors import ContractError
from aerie.files import canonical_json, digest_file, digest_json, read_json, replacing, write_json
from aerie.gates.draft import overfit_one
from aerie.progress import Progress
from aerie.states.manifest import read_manifest
from aerie.target import Target, read_target
from aerie.target_weights import read_embedding, read_head
from aerie.train.checkpoint import load_checkpoint, save_checkpoint
from aerie.train.data import Located, locate, packs_in_order, read_pack, split
from aerie.train.evaluate import simulate
from aerie.train.model import Draft
from aerie.train.objective import objective, teacher_shares
from aerie.train.packing import Pack, plan_packs
from aerie.train.tally import Tally

log = logging.getLogger("aerie")

_DEVIATION = 0.02
_BRANCH_SCALE = 0.2


@dataclass(frozen=True)
class Frozen:
    """What the trainer reads and never changes: embedding [V, H], head rows of the map [K, H],
    and `draft_ids` int64 [V], the draft id of a target id or -1.
    """

    embedding: Tensor
    head: Tensor
    draft_ids: Tensor


def freeze(target: Target, vocab: VocabMap) -> Frozen:
    """Read the target's weights that training needs, in float32."""
    ids = torch.from_numpy(vocab.target_ids)
    draft_ids = torch.full((vocab.vocab_size,), -1, dtype=torch.int64)
    draft_ids[ids] = torch.arange(len(ids))
    return Frozen(read_embedding(target).float(), read_head(target)[ids].float(), draft_ids)


def draft_config(
    target: Target, settings: DraftSettings, vocab: VocabMap, layers: Layers
) -> DraftConfig:
    """A draft with the target's head shape, RoPE and norm."""
    config = read_json(target.folder / "config.json")
    heads = config["num_attention_heads"]
    return DraftConfig(
        hidden_size=target.hidden_size,
        intermediate_size=settings.intermediate_size or config["intermediate_size"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or target.hidden_size // heads,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(vocab.target_ids),
        max_position=target.max_position,
        norm_eps=config["rms_norm_eps"],
        rope=config["rope_parameters"],
        layers=layers,
    )


def new_draft(config: DraftConfig, frozen: Frozen, seed: int) -> Draft:
    """A draft at step 0: seeded normal weights around a lens on the target's last captured layer.

    `fc` passes that layer through, the decoder layer adds little to it, and the head is the
    target's own rows: on little data this is worth half an epoch (docs/draft.md).
    """
    draft = Draft(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, _DEVIATION, generator=generator)
        draft.fc.weight[:, -config.hidden_size :].add_(torch.eye(config.hidden_size))
        draft.midlayer.self_attn.o_proj.weight.mul_(_BRANCH_SCALE)
        draft.midlayer.mlp.down_proj.weight.mul_(_BRANCH_SCALE)
        draft.lm_head.weight.copy_(frozen.head)
    return draft


def learning_rate(settings: DraftSettings, step: int, total: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    warmup = max(1, round(settings.warmup_share * total))
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


class Trainer:
    """Trains one draft. State that a step depends on is in `draft`, `optimizer` and `state`."""

    def __init__(
        self,
        settings: DraftSettings,
        config: DraftConfig,
        frozen: Frozen,
        samples: Sequence[Located],
        checkpoints: Path,
        contract: dict[str, Any],
    ) -> None:
        self.settings, self.config, self.frozen = settings, config, frozen
        self.training, self.held_out = split(samples, settings.eval_share)
        self.checkpoints = checkpoints
        self.draft = new_draft(config, frozen, settings.seed)
        self.optimizer = torch.optim.AdamW(
            self.draft.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        lengths = [sample.rows for sample in self.training]
        self.schedule = [
            (epoch, pack)
            for epoch in range(settings.epochs)
            for pack in plan_packs(lengths, settings.pack_tokens, settings.seed, epoch)
        ]
        self.state: dict[str, Any] = {
            "step": 0,
            "supervised": 0,
            "records": [],
            "epochs": [],
            "contract": contract,
        }

    def run(self) -> None:
        """Train to the end of the schedule, from the newest checkpoint that fits."""
        total = len(self.schedule)
        resumed = load_checkpoint(
            self.checkpoints, self.state["contract"], self.draft, self.optimizer
        )
        if resumed is None:
            self.self_test()
        self.state.update(resumed or {})
        with Progress("draft", total, "steps", "tokens") as progress:
            progress.skip(self.state["step"])
            for step in range(self.state["step"], total):
                epoch, indices = self.schedule[step]
                chosen = [self.training[index] for index in indices]
                pack = read_pack(chosen, self.settings.pack_tokens)
                record = self.step(step, pack)
                self.state["step"] = step + 1
                self.state["supervised"] += record["supervised"]
                ends_epoch = step + 1 == total or self.schedule[step + 1][0] != epoch
                if step % max(1, total // 1000) == 0 or ends_epoch:
                    self.state["records"].append({"step": step + 1, "epoch": epoch, **record})
                if ends_epoch:
                    self.state["epochs"].append(self.evaluate(epoch))
                if ends_epoch or (step + 1) % self.settings.checkpoint_every == 0:
                    save_checkpoint(
                        self.checkpoints, step + 1, self.draft, self.optimizer, self.state
                    )
                progress.advance(1, record["tokens"], f"loss {record['loss']:.3f}")

    def step(self, step: int, pack: Pack) -> dict[str, Any]:
        """One optimizer step; returns what `train.jsonl` says of it."""
        settings, frozen = self.settings, self.frozen
        rate = learning_rate(settings, step, len(self.schedule))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self.precision():
            result = objective(
                self.draft, frozen.embedding, frozen.head, frozen.draft_ids, pack,
                settings.steps, settings.decay,
            )  # fmt: skip
        self.optimizer.zero_grad()
        result.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.draft.parameters(), settings.clip)
        self.optimizer.step()
        return {
            "tokens": int((pack.sample_of_row >= 0).sum()),
            "supervised": int(result.counts[0]),
            "loss": round(result.loss.item(), 6),
            "learning_rate": rate,
            "gradient_norm": round(norm.item(), 6),
            "accuracy": [
                round(a, 4) for a in (result.correct / result.counts.clamp(min=1)).tolist()
            ],
        }

    def self_test(self) -> None:
        """Stop before the first step if the draft cannot learn the median sample by heart."""
        median = sorted(self.training, key=lambda sample: sample.rows)[len(self.training) // 2]
        pack, frozen = read_pack([median]), self.frozen

        def excess(draft: Draft) -> Tensor:
            with self.precision():
                result = objective(
                    draft, frozen.embedding, frozen.head, frozen.draft_ids, pack, 1, 1.0
                )
                teacher = teacher_shares(frozen.head, pack)
            entropy: Tensor = torch.special.entr(teacher).sum(-1).mean()
            return result.loss - entropy

        overfit_one(self.draft, excess)

    def precision(self) -> torch.autocast:
        """The precision of the products; weights and optimizer stay float32."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.settings.dtype == "bfloat16")

    def evaluate(self, epoch: int) -> dict[str, Any]:
        """Simulated accept length on the held-out samples, overall and per dataset."""
        settings, frozen = self.settings, self.frozen
        packs = packs_in_order(self.held_out, settings.pack_tokens)
        with self.precision():
            walks = simulate(self.draft, frozen.embedding, frozen.draft_ids, packs, settings.steps)
        overall = Tally(settings.steps)
        datasets: dict[str, Tally] = {}
        for sample, tally in zip(self.held_out, walks, strict=True):
            overall.add(tally)
            datasets.setdefault(sample.dataset, Tally(settings.steps)).add(tally)
        log.info(
            "epoch %d: simulated accept length %.3f on %d held-out samples",
            epoch + 1, overall.accept_length, overall.samples,
        )  # fmt: skip
        return {
            "epoch": epoch + 1,
            "overall": overall.as_dict(),
            "datasets": {name: tally.as_dict() for name, tally in sorted(datasets.items())},
        }


def train(
    settings: DraftSettings,
    manifest: Path,
    map_sidecar: Path,
    target_sidecar: Path,
    checkpoints: Path,
    out: Path,
) -> None:
    """Train a draft and write its folder; `out` is its sidecar, `draft.json`, written last.

    Raises:
        ContractError: an input is damaged, or its parts were captured with different layers.
        GateError: the draft gate.
    """
    target, vocab = read_target(target_sidecar), read_map(map_sidecar.with_name("map.safetensors"))
    indexes = read_manifest(manifest)
    layers = _layers(indexes)
    samples = locate(indexes)
    config = draft_config(target, settings, vocab, layers)
    map_digest = digest_file(map_sidecar.with_name("map.safetensors"))
    contract = {
        "settings": settings.model_dump(mode="json"),
        "draft": config.as_json(),
        "target": target.revision,
        "map": map_digest,
        "states": digest_json(read_sidecar(manifest, "manifest")["files"]),
    }
    trainer = Trainer(settings, config, freeze(target, vocab), samples, checkpoints, contract)
    log.info(
        "training on %d samples, %d held out; %d steps of at most %d tokens",
        len(trainer.training), len(trainer.held_out), len(trainer.schedule), settings.pack_tokens,
    )  # fmt: skip
    trainer.run()
    folder = out.parent
    weights = {name: value.bfloat16() for name, value in trainer.draft.state_dict().items()}
    maps = {"d2t": torch.from_numpy(vocab.d2t), "t2d": torch.from_numpy(vocab.t2d)}
    files = write_draft(folder, config, weights | maps)
    check_draft(folder, target.max_position)
    files += [folder / "train.jsonl", folder / "eval.json"]
    with replacing(files[2]) as scratch:
        lines = [canonical_json(record) + "\n" for record in trainer.state["records"]]
        scratch.write_text("".join(lines), encoding="utf-8")
    write_json(files[3], {"k": settings.steps, "epochs": trainer.state["epochs"]})
    write_sidecar(out, "draft", files, _counts(trainer), _provenance(contract, layers))
    # Kept until here, so that a kill during the export repeats the export and no step.
    shutil.rmtree(checkpoints, ignore_errors=True)


def _layers(indexes: Sequence[Path]) -> Layers:
    found = {
        tuple(read_sidecar(index, "states")["layers"]["hf_hidden_states"]) for index in indexes
    }
    if len(found) != 1:
        raise ContractError(
            "the states were captured with different layers",
            saw=sorted(found),
            expected="one set of layers",
            remedy="run the build again: parts of another configuration are captured anew",
        )
    return Layers(found.pop())


def _counts(trainer: Trainer) -> dict[str, Any]:
    return {
        "parameters": sum(parameter.numel() for parameter in trainer.draft.parameters()),
        "steps": trainer.state["step"],
        "supervised": trainer.state["supervised"],
        "samples": len(trainer.training),
        "held_out": len(trainer.held_out),
    }


def _provenance(contract: dict[str, Any], layers: Layers) -> dict[str, Any]:
    return {
        "settings": contract["settings"],
        "target": contract["target"],
        "map": contract["map"],
        "states": contract["states"],
        "layers": layers.as_dict(),
    }
