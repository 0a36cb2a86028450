"""The loop of a training run: steps, checkpoints, evaluation. Resumes at any step."""

import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from aerie.contracts.draft import DraftConfig
from aerie.errors import DataError, EngineError
from aerie.gates.draft import overfit_one
from aerie.progress import Progress
from aerie.train.checkpoint import load_checkpoint, load_weights, save_checkpoint
from aerie.train.data import Located, packs_in_order, read_pack, split
from aerie.train.evaluate import simulate
from aerie.train.layout import Replicated, new_layout
from aerie.train.loader import Loader
from aerie.train.objective import Frozen, objective, teacher_shares
from aerie.train.optimizer import learning_rate
from aerie.train.packing import Pack
from aerie.train.products import check_fp8
from aerie.train.ranks import Ranks
from aerie.train.records import Record, Records
from aerie.train.schedule import Step, plan_steps
from aerie.train.settings import DraftSettings
from aerie.train.start import new_weights
from aerie.train.step import take_step
from aerie.train.stop import Preempted, Stop
from aerie.train.tally import Tally
from aerie.train.tracking import Tracking
from aerie.train.weights import Weights

log = logging.getLogger("aerie")

_SELF_TEST_RATE = 2e-3


class Trainer:
    """Trains one draft. State that a step depends on is in `layout` and `state`.

    Raises:
        ConfigError: what the settings ask for is not possible on these GPUs.
    """

    def __init__(
        self,
        settings: DraftSettings,
        config: DraftConfig,
        frozen: Frozen,
        samples: Sequence[Located],
        checkpoints: Path,
        contract: dict[str, Any],
        ranks: Ranks,
        tracking: Tracking | None = None,
    ) -> None:
        self.settings, self.frozen, self.ranks = settings, frozen, ranks
        self.training, self.held_out = split(samples, settings.eval_share)
        self.checkpoints = checkpoints
        self.config = config
        if settings.fp8:
            check_fp8(config, getattr(torch, settings.dtype), ranks.device)
        self.layout = new_layout(settings, self._new_weights(), ranks)
        self.schedule = plan_steps(
            self.training, settings.pack_tokens, settings.seed, settings.epochs,
            settings.accumulate * ranks.world, settings.shuffle_tokens,
        )  # fmt: skip
        self.until = len(self.schedule)
        self.state: dict[str, Any] = {
            "step": 0,
            "supervised": 0,
            "skipped": 0,
            "parts": 1,
            "records": [],
            "epochs": [],
            "best": None,
            "contract": contract,
        }
        self.exported: dict[str, int] = {}
        self.tracking = tracking or Tracking()
        self.records = Records(len(self.schedule))

    def run(self, until: int | None = None) -> bool:
        """Train to the end of the schedule, from the newest checkpoint that fits. The weights are
        then those that `export` asks for.

        With `until`, an earlier step, a checkpoint is written after it. Returns whether the
        schedule ended.

        Raises:
            DataError: more steps than `max_skipped` gave a loss or gradient that is not finite.
            EngineError: one sample alone does not fit into the device's memory.
            GateError: the draft cannot learn one sample by heart.
            Preempted: the process was told to end; a checkpoint is written.
        """
        self.until = len(self.schedule) if until is None else until
        contract = self.state["contract"]
        resumed = load_checkpoint(self.checkpoints, contract, self.layout.restore)
        if resumed is None:
            self.self_test()
        self.state.update(resumed or {})
        self.tracking.start(
            self.state["step"], self.config, self.settings.steps, self.layout.weights.dtype,
            self.ranks,
        )  # fmt: skip
        with Progress("draft", len(self.schedule), "steps", "tokens") as progress, Stop() as stop:
            progress.skip(self.state["step"])
            while self.state["step"] < self.until:
                try:
                    self._run(progress, stop)
                except torch.OutOfMemoryError as error:
                    self._lower_budget(error)
        if self.state["step"] < len(self.schedule):
            return False
        self._choose()
        return True

    def _run(self, progress: Progress, stop: Stop) -> None:
        ranks, first = self.ranks, self.state["step"]
        plan = [self._share(step) for step in self.schedule[first : self.until]]
        budget = -(-self.settings.pack_tokens // self.state["parts"])
        loader = Loader(plan, budget, ranks.device)
        self.tracking.restart(loader.waited)
        for number, packs in enumerate(loader, start=first):
            self.records.add(self.step(number, packs), self.schedule[number])
            self.state["step"] = number + 1
            self.state["supervised"] += self.schedule[number].count(0)
            self.tracking.add(self.schedule[number])
            ends_epoch = self._ends_epoch(number)
            due = (number + 1) % self.settings.checkpoint_every == 0 or number + 1 == self.until
            reading = self.records.full or ends_epoch or due
            # Several ranks vote, which waits for the device, so they do it when they read anyway.
            stopping = (ranks.world == 1 or reading) and stop.asked(ranks)
            if reading or stopping:
                self.tracking.read(self._read_records(), loader.waited)
            if ends_epoch:
                self._end_epoch(number)
            if ends_epoch or due or stopping:
                self._save()
                self.tracking.restart(loader.waited)
            if stopping:
                raise Preempted(number + 1)
            progress.advance(1, self.schedule[number].tokens, self.records.note)
        log.info("waited %.1f s for data", loader.waited)

    def step(self, number: int, packs: Sequence[Pack]) -> Record:
        """One optimizer step; nothing is read back from the device."""
        settings, step, ranks = self.settings, self.schedule[number], self.ranks
        counts = [step.count(each) for each in range(settings.steps)]
        rate = learning_rate(
            settings.learning_rate, settings.warmup_share, number, len(self.schedule)
        )
        fillers = len(self._fillers(step))
        figures = take_step(
            settings, self.layout, self.frozen, ranks, packs, counts, rate,
            step.rounds(ranks.world), fillers,
        )  # fmt: skip
        return Record(number + 1, rate, counts, figures)

    def _share(self, step: Step) -> list[tuple[Located, ...]]:
        mine = step.of(self.ranks.rank, self.ranks.world, self.state["parts"])
        return mine + self._fillers(step)

    def _fillers(self, step: Step) -> list[tuple[Located, ...]]:
        """Packs for a rank that has fewer than others, where all must take the same number."""
        rank, world = self.ranks.rank, self.ranks.world
        lacking = step.rounds(world) - len(step.packs[rank::world])
        return [step.packs[0][:1]] * lacking if self.layout.exchanges else []

    def self_test(self) -> None:
        """Stop before the first step if the draft cannot learn the median sample by heart."""
        # Of those that are trained on first: the states of others may not be there yet.
        first = [step for step in self.schedule if (step.epoch, step.window) == (0, 0)]
        place = {sample: number for number, sample in enumerate(self.training)}
        samples = [sample for step in first for pack in step.packs for sample in pack]
        samples.sort(key=lambda sample: (sample.rows, place[sample]))
        median = samples[len(samples) // 2]
        pack = read_pack([median]).to(self.ranks.device)
        real = sum(pack.answers)
        entropy = torch.special.entr(teacher_shares(self.frozen, pack)[:real]).sum(-1).mean()
        # Each rank by itself, on the same sample.
        test = Replicated(self.settings, self._new_weights(), self.ranks)

        def excess() -> float:
            result = objective(test.weights, test.gradient, self.frozen, pack, 1, 1.0)
            test.optimizer.step(test.gradient.flat, result.loss, _SELF_TEST_RATE)
            return float(result.loss - entropy)

        overfit_one(excess)

    def evaluate(self, epoch: int) -> dict[str, Any]:
        """Simulated accept length on the held-out samples, overall and per dataset."""
        settings, frozen, ranks = self.settings, self.frozen, self.ranks
        mine = self.held_out[ranks.rank :: ranks.world]
        packs = (pack.to(ranks.device) for pack in packs_in_order(mine, settings.pack_tokens))
        self.layout.whole()
        weights = self.layout.weights
        walks = simulate(weights, frozen.embedding, frozen.draft_ids, packs, settings.steps)
        overall = Tally(settings.steps)
        datasets: dict[str, Tally] = {}
        named = [(sample.dataset, tally) for sample, tally in zip(mine, walks, strict=True)]
        for dataset, tally in chain.from_iterable(ranks.gather(named)):
            overall.add(tally)
            datasets.setdefault(dataset, Tally(settings.steps)).add(tally)
        log.info(
            "epoch %d: simulated accept length %.3f on %d held-out samples",
            epoch + 1, overall.accept_length, overall.samples,
        )  # fmt: skip
        return {
            "epoch": epoch + 1,
            "overall": overall.as_dict(),
            "datasets": {name: tally.as_dict() for name, tally in sorted(datasets.items())},
        }

    def _end_epoch(self, number: int) -> None:
        result = self.evaluate(self.schedule[number].epoch)
        self.state["epochs"].append(result)
        length, best = result["overall"]["accept_length"], self.state["best"]
        if best is None or length > best["accept_length"]:
            self.state["best"] = {
                "step": number + 1, "epoch": result["epoch"], "accept_length": length,
            }  # fmt: skip
        self.tracking.evaluated(number + 1, result)

    def _choose(self) -> None:
        """Take the weights that `export` asks for; only the rank that writes them needs them."""
        last = {"step": self.state["step"], "epoch": self.state["epochs"][-1]["epoch"]}
        chosen = self.state["best"] if self.settings.export == "best" else last
        self.exported = {name: (chosen or last)[name] for name in last}
        self.layout.whole()
        if self.ranks.leads and self.exported != last:
            load_weights(self.checkpoints, self.exported["step"], self.layout.weights)
            log.info("exporting the weights of epoch %d, the best", self.exported["epoch"])

    def _new_weights(self) -> Weights:
        return new_weights(self.config, self.frozen.head, self.settings.seed)

    def _ends_epoch(self, number: int) -> bool:
        last = number + 1 == len(self.schedule)
        return last or self.schedule[number + 1].epoch != self.schedule[number].epoch

    def _read_records(self) -> list[dict[str, Any]]:
        """Read the figures of the steps since the last time; they are waited for here."""
        fresh, skipped = self.records.read(self._ends_epoch)
        self.state["records"] += fresh
        self.state["skipped"] += len(skipped)
        for number in skipped:
            names = [sample.id for pack in self.schedule[number - 1].packs for sample in pack]
            log.warning("step %d skipped, it was not finite; its samples: %s", number, names)
        if self.state["skipped"] > self.settings.max_skipped:
            raise DataError(
                "too many steps gave a loss or a gradient that is not finite",
                saw=f"{self.state['skipped']} steps; the log names their samples",
                expected=f"at most {self.settings.max_skipped} (`max_skipped` of the draft)",
                remedy="run `make verify`; then lower `learning_rate` or `clip` of the draft",
            )
        return fresh

    def _save(self) -> None:
        tensors = self.layout.tensors()
        if self.ranks.leads:
            save_checkpoint(
                self.checkpoints, self.state["step"], tensors, self.state,
                self.settings.keep_checkpoints,
            )  # fmt: skip
        self.ranks.wait()

    def _lower_budget(self, error: torch.OutOfMemoryError) -> None:
        """Halve the packs and take two to a step: the same step, in less memory.

        A rank that exchanges data while it computes cannot repeat a step alone.
        """
        tokens = self.settings.pack_tokens
        if self.state["parts"] > 1 or self.layout.exchanges:
            whole = self.state["parts"] == 1
            raise EngineError(
                f"the device has too little memory for {'a' if whole else 'half a'} pack",
                saw=str(error).splitlines()[0],
                expected=f"room for {tokens if whole else tokens // 2:,} tokens",
                remedy="set `activation_checkpointing: true` for the draft, or lower `pack_tokens` "
                "and raise `accumulate` as much",
            ) from error
        self.state["parts"] = 2
        log.warning(
            "out of memory: packs are cut to %d tokens from here on, two to a step", tokens // 2
        )
        torch.cuda.empty_cache()
