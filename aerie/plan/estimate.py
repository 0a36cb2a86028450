"""The arithmetic of a plan: from the configuration and the facts to tokens, bytes and hours.

Nothing here reads anything, so that an option is weighed by estimating again with one setting
changed.
"""

import math
from dataclasses import dataclass

from aerie.config import Config, DatasetSettings, ResponsesSettings
from aerie.contracts.codecs import Codec
from aerie.plan.accept import Forecast, Point, forecast
from aerie.plan.facts import DatasetFacts, Facts
from aerie.plan.known import KNOWN
from aerie.plan.lengths import Lengths, Range, estimated, measured
from aerie.plan.rates import PHASES, Phase, Rate, rate
from aerie.plan.settings import Shape
from aerie.plan.storage import (
    CODECS,
    RESPONSES_BYTES_PER_TOKEN,
    bytes_per_token,
    drafts_bytes,
    states_files,
)
from aerie.prompts.adapters import adapter
from aerie.prompts.adapters.base import Category

MEASURED, ESTIMATE = "measured", "estimate"


@dataclass(frozen=True)
class Entry:
    """One dataset of the mix. `available` are distinct prompts, None where no one knows.

    Tokens count prompt and answer: `generated` all that the target works through, `tokens` those
    that states are captured of. `lost` is the share of the answers that are not kept.
    """

    dataset: str
    adapter: str
    category: str
    licence: str
    gated: bool
    place: str
    take: int
    thinking_share: float
    available: int | None
    available_basis: str
    available_source: str
    prompts: int
    parts: int
    samples: int
    lost: float
    tokens_per_sample: Range
    tokens: Range
    generated: Range
    basis: str
    source: str


@dataclass(frozen=True)
class Storage:
    """Bytes. `states` by codec; `present` are already written, `drafts` hold checkpoints too.

    `budget` are states at a time at most, where capture is rolling; None where all of them stay.
    """

    codec: Codec
    bytes_per_token: dict[Codec, int]
    states: dict[Codec, Range]
    responses: Range
    responses_basis: str
    drafts: int
    drafts_basis: str
    present: int
    free: int
    budget: int | None = None

    def needed(self, codec: Codec) -> Range:
        """What has still to be written with `codec`, and stays at the same time."""
        states = self.states[codec]
        states = states if self.budget is None else states.at_most(self.budget)
        all_of_it = Range.total([states, self.responses, Range.exactly(self.drafts)])
        return all_of_it.less(self.present)

    def fits(self, codec: Codec) -> bool:
        """Whether that is free, as far as it is expected."""
        return self.needed(codec).expected <= self.free


@dataclass(frozen=True)
class Work:
    """One phase: jobs, files, and hours of one host; None where nothing is known."""

    phase: str
    jobs: int
    done: int
    files: int
    tokens: Range | None
    hours: Range | None
    hours_on_hosts: Range | None
    gpu_hours: Range | None
    basis: str
    source: str


@dataclass(frozen=True)
class Plan:
    """What a build will need. `problems` are for `aerie.plan.options` to find."""

    target: str
    shape: Shape
    shape_source: str
    hosts: int
    gpus_per_host: int
    longest: int
    entries: tuple[Entry, ...]
    storage: Storage
    work: tuple[Work, ...]
    points: tuple[Point, ...]
    accept: Forecast

    @property
    def samples(self) -> int:
        return sum(entry.samples for entry in self.entries)

    @property
    def prompts(self) -> int:
        return sum(entry.prompts for entry in self.entries)

    @property
    def parts(self) -> int:
        return sum(entry.parts for entry in self.entries)

    @property
    def tokens(self) -> Range:
        return Range.total(entry.tokens for entry in self.entries)

    @property
    def thinking_share(self) -> float:
        thinking = sum(entry.prompts * entry.thinking_share for entry in self.entries)
        return thinking / max(self.prompts, 1)

    @property
    def hours(self) -> Range:
        return Range.total(work.hours for work in self.work if work.hours)

    @property
    def hours_on_hosts(self) -> Range:
        return Range.total(work.hours_on_hosts for work in self.work if work.hours_on_hosts)

    @property
    def gpu_hours(self) -> Range:
        return Range.total(work.gpu_hours for work in self.work if work.gpu_hours)

    @property
    def basis(self) -> str:
        """`measured`, `estimate`, or how many of the datasets are measured."""
        found = [entry.basis for entry in self.entries]
        count = found.count(MEASURED)
        if 0 < count < len(found):
            return f"{count} of {len(found)} datasets measured"
        return MEASURED if count else ESTIMATE


def estimate(config: Config, facts: Facts) -> Plan:
    """What the build of `config` needs, by `facts`.

    Raises:
        ConfigError: an adapter or a layer does not exist.
    """
    entries = tuple(
        _entry(name, settings, facts.datasets[name], config)
        for name, settings in config.datasets.items()
    )
    storage = _storage(config, facts, entries)
    samples = sum(entry.samples for entry in entries)
    return Plan(
        target=config.target.name,
        shape=facts.shape,
        shape_source=facts.shape_source,
        hosts=config.plan.hosts,
        gpus_per_host=_gpus(config),
        longest=config.prompts.max_tokens
        + max(config.responses_of(name).max_new_tokens for name in config.datasets),
        entries=entries,
        storage=storage,
        work=_work(config, facts, entries, storage),
        points=facts.points,
        accept=forecast(facts.points, max(samples, 1), config.plan.round_cost),
    )


def _entry(name: str, settings: DatasetSettings, facts: DatasetFacts, config: Config) -> Entry:
    reader = adapter(settings.adapter)
    available, basis, source = _available(settings, facts)
    prompts, parts = _selection(settings.take, config.prompts.part_size, facts, available)
    lengths, lengths_source = _lengths(reader.category, facts, config.responses_of(name))
    answers = prompts * (facts.answers_per_prompt or facts.turns or 1.0)
    samples = round(answers * (1 - lengths.lost))
    tokens = lengths.kept.times(answers)
    return Entry(
        dataset=name,
        adapter=settings.adapter,
        category=str(reader.category),
        licence=reader.licence,
        gated=reader.gated,
        place=settings.path or "@".join(settings.hub or ()),
        take=settings.take,
        thinking_share=_thinking_share(settings, config),
        available=available,
        available_basis=basis,
        available_source=source,
        prompts=prompts,
        parts=parts,
        samples=samples,
        lost=lengths.lost,
        tokens_per_sample=tokens.times(1 / max(answers * (1 - lengths.lost), 1)),
        tokens=tokens,
        generated=lengths.generated.times(answers),
        basis=MEASURED if facts.answers else ESTIMATE,
        source=lengths_source,
    )


def _thinking_share(settings: DatasetSettings, config: Config) -> float:
    own = settings.thinking_share
    return config.prompts.thinking_share if own is None else own


def _available(settings: DatasetSettings, facts: DatasetFacts) -> tuple[int | None, str, str]:
    if facts.selected:
        return facts.selected.available, MEASURED, "candidates without duplicates"
    if facts.candidates is not None:
        return facts.candidates, MEASURED, "candidates, duplicates of other datasets included"
    if known := KNOWN.get(settings.adapter):
        return known.prompts, ESTIMATE, known.source
    return None, "unknown", "no candidates yet, and its card is not on record"


def _selection(
    take: int, part_size: int, facts: DatasetFacts, available: int | None
) -> tuple[int, int]:
    """Prompts and parts: whole parts are taken until they hold the take."""
    found = facts.selected
    if found and (found.take, found.part_size) == (take, part_size):
        return found.prompts, found.parts
    prompts = math.ceil(take / part_size) * part_size
    prompts = prompts if available is None else min(prompts, available)
    return prompts, math.ceil(prompts / part_size)


def _lengths(
    category: Category, facts: DatasetFacts, settings: ResponsesSettings
) -> tuple[Lengths, str]:
    limit, keep = settings.max_new_tokens, settings.keep_truncated
    if facts.answers:
        answers = len(facts.answers.outputs)
        return measured(facts.answers, limit, keep), f"{answers:,} answers of this work folder"
    source = f"category {category}"
    if facts.prompt_tokens:
        source += f", prompts of about {facts.prompt_tokens:,.0f} tokens"
    return estimated(category, facts.prompt_tokens or 0.0, limit, keep), source


def _storage(config: Config, facts: Facts, entries: tuple[Entry, ...]) -> Storage:
    each = {codec: bytes_per_token(facts.shape, config, codec) for codec in CODECS}
    tokens = Range.total(entry.tokens for entry in entries)
    generated = Range.total(entry.generated for entry in entries)
    stored = facts.responses_bytes_per_token
    return Storage(
        codec=config.states.codec,
        bytes_per_token=each,
        states={codec: tokens.times(bytes_) for codec, bytes_ in each.items()},
        responses=generated.times(stored or RESPONSES_BYTES_PER_TOKEN),
        responses_basis=MEASURED if stored else ESTIMATE,
        drafts=drafts_bytes(facts.shape, config, facts.draft_bytes),
        drafts_basis=MEASURED if facts.draft_bytes else ESTIMATE,
        present=facts.present,
        free=facts.free,
        budget=config.rolling.budget_bytes if config.rolling else None,
    )


def _work(
    config: Config, facts: Facts, entries: tuple[Entry, ...], storage: Storage
) -> tuple[Work, ...]:
    datasets, runs = len(entries), len(config.drafts)
    downloads = sum(dataset.hub is not None for dataset in config.datasets.values())
    parts = sum(entry.parts for entry in entries)
    tokens = Range.total(entry.tokens for entry in entries)
    epochs = sum(draft.epochs for draft in config.drafts.values())
    amounts: dict[Phase, Range] = {
        "responses": Range.total(entry.generated for entry in entries),
        # Every epoch of every draft captures all anew at worst.
        "states": tokens.times(epochs) if config.rolling else tokens,
        "draft": tokens.times(epochs),
    }
    files = sum(
        states_files(
            entry.tokens.expected / max(entry.parts, 1),
            entry.parts,
            storage.bytes_per_token[storage.codec],
            config.states.file_bytes,
        )
        for entry in entries
    )
    # Jobs and files by phase, in the order of the build. A part of prompts, responses or states is
    # a table or files and a sidecar; responses have rejects beside them.
    counts: dict[str, tuple[int, int]] = {
        "source": (downloads, downloads),
        "candidates": (datasets, 4 * datasets),
        "prompts": (datasets, 2 * parts + 3 * datasets),
        "responses": (parts, 3 * parts),
        "counts": (datasets, 2 * datasets),
        "map": (1, 5),
        "states": (runs, runs) if config.rolling else (parts, files + parts),
        "draft": (runs, 5 * runs),
        "bench": (runs * len(config.bench.names),) * 2,
    }
    return tuple(
        _gpu_work(phase, *counts[phase], amounts[phase], config, facts)
        if phase in PHASES
        else _timed_work(phase, *counts[phase], config, facts)
        for phase in counts
        if counts[phase][0]
    )


def _gpu_work(
    phase: Phase, jobs: int, files: int, tokens: Range, config: Config, facts: Facts
) -> Work:
    found: Rate = rate(phase, facts.rates, config.plan)
    hours = tokens.over(found.tokens_per_s).times(1 / 3600)
    return Work(
        phase=phase,
        jobs=jobs,
        done=facts.done.get(phase, 0),
        files=files,
        tokens=tokens,
        hours=hours,
        hours_on_hosts=hours.times(_share(jobs, config.plan.hosts)),
        gpu_hours=hours.times(_gpus(config)),
        basis=found.basis,
        source=found.source,
    )


def _timed_work(phase: str, jobs: int, files: int, config: Config, facts: Facts) -> Work:
    """A phase that has no rate in tokens: as long as its jobs took so far."""
    seconds = facts.rates.seconds.get(phase)
    hours = Range.exactly(jobs * seconds / 3600) if seconds else None
    return Work(
        phase=phase,
        jobs=jobs,
        done=facts.done.get(phase, 0),
        files=files,
        tokens=None,
        hours=hours,
        hours_on_hosts=hours.times(_share(jobs, config.plan.hosts)) if hours else None,
        gpu_hours=hours.times(_gpus(config)) if hours and phase == "bench" else None,
        basis=MEASURED if seconds else "unknown",
        source="jobs of this work folder" if seconds else "no job has run yet",
    )


def _gpus(config: Config) -> int:
    # As the rules have it: the embedded engine runs on the CPU.
    return 0 if config.engine == "transformers" else config.plan.gpus_per_host


def _share(jobs: int, hosts: int) -> float:
    """Time on `hosts` hosts as a share of that on one: a job is never split."""
    return math.ceil(jobs / hosts) / jobs if jobs else 1.0
