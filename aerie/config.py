"""The configuration: one schema, checked before anything runs, errors that name line and remedy.

The models below are the schema; `schemas/config.schema.json` is written from them for editors.
Each script receives one section as JSON, so that a job goes stale with its own section alone.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, ValidationInfo, field_validator

from aerie.config_errors import describe
from aerie.engines.sglang.settings import SglangSettings
from aerie.errors import ConfigError
from aerie.plan.settings import PlanSettings
from aerie.prompts.unpack import DEFAULT_BYTES
from aerie.rolling.settings import RollingSettings
from aerie.scaling.settings import MapStudySettings, MixStudySettings, ScalingSettings
from aerie.section import Section
from aerie.section import key as _field
from aerie.states.settings import StatesSettings
from aerie.train.settings import DraftSettings, TrackingSettings

ROOT = Path(__file__).resolve().parent.parent

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Mode = Literal["thinking", "instant"]
# The suite of prompts that are held out of the mix.
MIX = "mix"


class PackageSource(Section):
    """A GGUF file inside an installed Python package."""

    package: str = _field(..., "name of the distribution on the package index")
    version: str = _field(..., "exact version of the distribution")
    file: str = _field(..., "file name of the GGUF inside the distribution")
    sha256: str = _field(
        ..., "digest of the GGUF", "print it with `sha256sum FILE`", pattern=r"^[0-9a-f]{64}$"
    )


class PathSource(Section):
    """A plain checkpoint folder (config.json, *.safetensors, tokenizer, chat template)."""

    path: str = _field(..., "folder of the checkpoint, absolute or relative to the repository")


class TargetSettings(Section):
    """The model to be made faster."""

    name: str = _field(..., "what the report calls the target")
    source: PackageSource | PathSource = _field(..., "where the weights come from")
    dtype: Literal["bfloat16", "float32"] = _field("bfloat16", "precision the target runs in")
    licence: str = _field("unknown", "SPDX identifier of the weights' licence")
    thinking_variable: str | None = _field(
        None, "chat template variable that turns thinking on (Kimi-K2.5: `thinking`)"
    )
    trust_remote_code: bool = _field(
        False, "run the tokenizer's code that the checkpoint brings (Kimi-K2.5)"
    )


class DatasetSettings(Section):
    """One entry of the mix. The order of the entries is the priority for duplicates."""

    adapter: str = _field(
        ...,
        "Hugging Face id of the dataset, as its adapter names it",
        "docs/prompts.md names the adapters",
    )
    path: str | None = _field(
        None, "folder or file of a dataset that is there; without it, it comes from the Hub"
    )
    repo: str | None = _field(
        None,
        "dataset on the Hub, OWNER/NAME; default: the adapter's id",
        "give a dataset as OWNER/NAME, or `path` alone for files that are there",
        pattern=r"^[\w.-]+/[\w.-]+$",
    )
    revision: str | None = _field(
        None,
        "branch, tag or, at best, commit on the Hub; default: main",
        "give a revision as the Hub lists it, or `path` alone for files that are there",
        min_length=1,
    )
    files: tuple[str, ...] | None = _field(
        None,
        "patterns of the files that are read; default: the adapter's",
        "give at least one pattern such as data/train-*.parquet",
        min_length=1,
    )
    take: int = _field(..., "prompts wanted; whole parts are taken until it is met", ge=1)
    thinking_share: float | None = _field(
        None,
        "share of the prompts that the target thinks about before it answers; default: prompts.*",
        ge=0,
        le=1,
    )
    max_new_tokens: int | None = _field(
        None, "tokens of an answer at most; default: responses.max_new_tokens", ge=2
    )
    max_rejected_share: float = _field(
        0.5,
        "share of the rows that may be rejected before the build stops",
        "look at rejects.parquet of the dataset; raise it only if the reasons are expected",
        ge=0,
        le=1,
    )

    @field_validator("repo", "revision")
    @classmethod
    def _not_beside_path(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("path") is not None:
            raise ValueError("`path` is given too: a dataset is local or from the Hub, not both")
        return value

    @field_validator("files")
    @classmethod
    def _patterns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for pattern in value or ():
            parts = pattern.split("/")
            if "" in parts or ".." in parts or any("**" in p and p != "**" for p in parts):
                raise ValueError(f"{pattern!r} is no pattern of files inside a dataset")
        return value

    @property
    def hub(self) -> tuple[str, str] | None:
        """Repository and revision on the Hub, or None for a dataset that is there."""
        return (
            None if self.path is not None else (self.repo or self.adapter, self.revision or "main")
        )


class PromptsSettings(Section):
    """Selection of prompts."""

    part_size: int = _field(2000, "candidates in a part, the unit of staleness", ge=1)
    max_tokens: int = _field(8192, "longest prompt, in tokens of the target", ge=8)
    max_turns: int = _field(4, "user turns kept of a conversation", ge=1)
    thinking_share: float = _field(
        0.0, "share of the prompts that the target thinks about before it answers", ge=0, le=1
    )
    benchmarks: tuple[str, ...] = _field(
        (), "JSONL files of prompts, besides the bench's suites, that must not be trained on"
    )
    max_unpacked_bytes: int = _field(
        DEFAULT_BYTES, "bytes that a row group of Parquet, or a .gz file, may unpack to", ge=1
    )


class LicencesSettings(Section):
    """Which licences a dataset may have."""

    allow: tuple[str, ...] = _field(
        ("Apache-2.0", "MIT", "BSD-3-Clause", "CC-BY-4.0", "CC0-1.0", "ODC-By-1.0"),
        "SPDX identifiers of licences that may be used; `unknown` is not one of them",
    )
    accept: dict[str, str] = _field(
        {},
        "adapter id to the reason why this dataset is used under a licence not in `allow`",
        "write why, and who decided it",
    )


class ResponsesSettings(Section):
    """How the target answers."""

    max_new_tokens: int = _field(4096, "tokens of an answer at most", ge=2)
    temperature: float = _field(0.0, "0 is greedy", ge=0)
    top_p: float = _field(1.0, "nucleus of the sampled distribution", gt=0, le=1)
    batch_size: int = _field(32, "requests decoded together", ge=1)
    keep_truncated: bool = _field(False, "keep answers that ended by length")
    native: bool = _field(
        True, "use answers that a dataset has from the target, where they pass the test"
    )
    max_compression: float = _field(
        6.0, "answers that compress better than this are loops and rejected", gt=1
    )
    min_distinct: float = _field(
        0.2, "answers whose share of distinct 4-grams is lower are loops and rejected", ge=0, le=1
    )
    max_rejected_share: float = _field(
        0.5, "share of a part's answers that may be rejected before the build stops", ge=0, le=1
    )
    supervised_band: tuple[float, float] = _field(
        (0.02, 0.98), "allowed share of supervised tokens among all tokens of a part"
    )


class VocabSettings(Section):
    """The map from the draft's vocabulary to the target's."""

    size: int = _field(
        32000,
        "entries of the map",
        "use a multiple of 64, at most the target's vocabulary",
        ge=64,
        multiple_of=64,
    )
    floor: float = _field(0.9, "least coverage over all datasets", ge=0, le=1)
    dataset_floor: float = _field(0.8, "least coverage of any one dataset", ge=0, le=1)


class BenchSettings(Section):
    """Measurement of the draft against plain decoding."""

    suites: dict[Name, str] = _field(..., "suite name to JSONL file", min_length=1)
    held_out: int = _field(
        0, "prompts of each dataset that are measured, as the suite `mix`, and not trained on", ge=0
    )
    k: int = _field(3, "draft tokens of a round", ge=1, le=16)
    max_new_tokens: int = _field(512, "tokens of an answer at most", ge=2)
    prompts_per_domain: int | None = _field(None, "prompts used of each domain; default all", ge=1)
    repeats: int = _field(3, "timed passes, with and without the draft in turn", ge=1)
    timed_prompts: int = _field(16, "prompts of a timed pass", ge=1)
    concurrency: tuple[int, ...] = _field(
        (1, 8, 32), "requests in flight of a timed pass; engine sglang", min_length=1
    )
    chains: tuple[int, ...] = _field(
        (), "more draft tokens of a round to try; each starts a server; engine sglang"
    )
    min_accept_length: float = _field(1.05, "the accept gate", ge=1)
    simulated_tolerance: float = _field(
        0.25, "largest distance between the served and the simulated accept length", gt=0
    )
    goal_accept_length: float | None = _field(
        None, "the accept length that the build is for (Kimi-K2.5: 3.0)", ge=1
    )
    max_compression: float = _field(6.0, "answers that compress better do not count", gt=1)
    min_distinct: float = _field(
        0.2, "answers whose share of distinct 4-grams is lower do not count", ge=0, le=1
    )

    @property
    def names(self) -> list[str]:
        """All suites, that of the mix's own prompts among them."""
        return [*self.suites, MIX] if self.held_out else list(self.suites)

    @field_validator("suites")
    @classmethod
    def _not_mix(cls, value: dict[str, str]) -> dict[str, str]:
        if MIX in value:
            raise ValueError(f"`{MIX}` is the suite of `bench.held_out`: choose another name")
        return value


class ScoutWeights(Section):
    """What each criterion of relevance counts; docs/scout.md defines the criteria."""

    diversity: float = _field(1.0, "many distinct prompts of many kinds", ge=0)
    quality: float = _field(1.0, "used by others, readable, documented, licensed", ge=0)
    match: float = _field(2.0, "of the category, and like the target's traffic", gt=0)


class ScoutSettings(Section):
    """The search for datasets on the Hub."""

    candidates: int = _field(25, "datasets of a category that are looked into", ge=15)
    listed: int = _field(50, "datasets asked of each search, most downloaded first", ge=15, le=1000)
    traffic: tuple[str, ...] = _field(
        ("agent", "tool", "code", "coding", "swe", "reason", "multi-turn", "kimi"),
        "beginnings of words that mark what the target is used for",
        min_length=1,
    )
    weights: ScoutWeights = ScoutWeights()


class Config(Section):
    """A whole build."""

    work: str = _field(..., "folder of everything that the build makes")
    seed: int = _field(0, "seed of selection and sampling")
    engine: Literal["transformers", "sglang"] = _field("transformers", "what runs the target")
    sglang: SglangSettings = SglangSettings()
    target: TargetSettings
    datasets: dict[Name, DatasetSettings] = _field(..., "the mix", min_length=1)
    prompts: PromptsSettings = PromptsSettings()
    licences: LicencesSettings = LicencesSettings()
    responses: ResponsesSettings = ResponsesSettings()
    vocab: VocabSettings = VocabSettings()
    states: StatesSettings = StatesSettings()
    # Before `drafts`, which are checked against it.
    rolling: RollingSettings | None = _field(
        None, "capture states as drafts are trained, where the disk does not hold them all"
    )
    drafts: dict[Name, DraftSettings] = _field(
        {"main": DraftSettings()},
        "runs",
        "give at least one; with `rolling`, each its `shuffle_tokens`: `make plan` says what fits",
        min_length=1,
        validate_default=True,
    )
    tracking: TrackingSettings = TrackingSettings()
    bench: BenchSettings
    scaling: ScalingSettings = ScalingSettings()
    map_study: MapStudySettings = MapStudySettings()
    mix_study: MixStudySettings = MixStudySettings()
    plan: PlanSettings = PlanSettings()
    scout: ScoutSettings = ScoutSettings()

    @field_validator("drafts")
    @classmethod
    def _can_roll(
        cls, value: dict[str, DraftSettings], info: ValidationInfo
    ) -> dict[str, DraftSettings]:
        lacking = [name for name, draft in value.items() if draft.shuffle_tokens is None]
        if info.data.get("rolling") is not None and lacking:
            raise ValueError(f"`rolling` needs `shuffle_tokens` of each draft: {lacking[0]}")
        return value

    def responses_of(self, dataset: str) -> ResponsesSettings:
        """How the target answers the prompts of one dataset."""
        own = self.datasets[dataset].max_new_tokens
        return (
            self.responses
            if own is None
            else self.responses.model_copy(update={"max_new_tokens": own})
        )


def validate(data: Any, text: str = "", source: str = "the configuration") -> Config:
    """Check `data` against the schema and return it typed, with defaults.

    Raises:
        ConfigError: one paragraph for each problem: line, field, value, remedy.
    """
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = [
            describe(problem, text, Config.model_json_schema()) for problem in error.errors()
        ]
    raise ConfigError(
        f"{source} has {len(problems)} problem{'s'[: len(problems) > 1]}\n" + "\n".join(problems),
        remedy="every key is described in schemas/config.schema.json",
    )


def check_suites(config: Config) -> None:
    """Check that the files of all suites are there.

    Raises:
        ConfigError: one is not.
    """
    for name, path in config.bench.suites.items():
        if not (ROOT / path).is_file():
            raise ConfigError(
                f"bench.suites.{name} names a file that is not there",
                saw=path,
                expected="a JSONL file, absolute or relative to the repository",
                remedy="correct the path; docs/bench.md says what a line is",
            )


def load(path: Path) -> Config:
    """Read and check a YAML configuration.

    Raises:
        ConfigError: the file is missing, is not YAML or does not match the schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read", saw=error) from error
    return validate(data, text, str(path))
