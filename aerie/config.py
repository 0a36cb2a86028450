"""The configuration: one schema, checked before anything runs, errors that name line and remedy.

The models below are the schema; `schemas/config.schema.json` is written from them for editors.
Each script receives one section as JSON, so that a job goes stale with its own section alone.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from aerie.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Mode = Literal["thinking", "instant"]


def _field(default: Any, description: str, remedy: str | None = None, **limits: Any) -> Any:
    extra: dict[str, JsonValue] = {"remedy": remedy} if remedy else {}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class Section(BaseModel):
    """A part of the configuration. Unknown keys are errors: a typo must not fall back silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def as_json(self) -> str:
        """The section with its defaults as canonical JSON: what a rule passes to its script."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


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


class DatasetSettings(Section):
    """One entry of the mix. The order of the entries is the priority for duplicates."""

    adapter: str = _field(
        ...,
        "Hugging Face id of the dataset, as its adapter names it",
        "docs/prompts.md names the adapters",
    )
    path: str = _field(..., "folder of the downloaded dataset")
    take: int = _field(..., "prompts wanted; whole parts are taken until it is met", ge=1)
    mode: Mode = _field("instant", "whether the target thinks before it answers")
    max_rejected_share: float = _field(
        0.5,
        "share of the rows that may be rejected before the build stops",
        "look at rejects.parquet of the dataset; raise it only if the reasons are expected",
        ge=0,
        le=1,
    )


class PromptsSettings(Section):
    """Selection of prompts."""

    part_size: int = _field(2000, "candidates in a part, the unit of staleness", ge=1)
    max_tokens: int = _field(8192, "longest prompt, in tokens of the target", ge=8)
    max_turns: int = _field(4, "user turns kept of a conversation", ge=1)


class ResponsesSettings(Section):
    """How the target answers."""

    max_new_tokens: int = _field(4096, "tokens of an answer at most", ge=2)
    temperature: float = _field(0.0, "0 is greedy", ge=0)
    top_p: float = _field(1.0, "nucleus of the sampled distribution", gt=0, le=1)
    batch_size: int = _field(32, "requests decoded together", ge=1)
    keep_truncated: bool = _field(False, "keep answers that ended by length")
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


class StatesSettings(Section):
    """Capture of hidden states."""

    layers: tuple[int, ...] | None = _field(
        None,
        "indices into output_hidden_states; default [2, N//2, N-3]",
        "give three ascending layers between 1 and N-1, or leave the key out",
    )
    codec: Literal["bf16"] = _field("bf16", "how states are stored")
    batch_tokens: int = _field(4096, "tokens of one forward pass", ge=64)
    file_bytes: int = _field(2_000_000_000, "size of one states file, about", ge=1_000_000)


class DraftSettings(Section):
    """Training of one draft."""

    seed: int = _field(0, "seed of order and initial weights")
    intermediate_size: int | None = _field(None, "width of the MLP; default: the target's")
    steps: int = _field(7, "training-time-test steps", ge=1, le=16)
    decay: float = _field(0.8, "weight of step i is decay^i", gt=0, le=1)
    epochs: int = _field(3, "passes over the data", ge=1)
    learning_rate: float = _field(1e-4, "peak of the schedule", gt=0)
    warmup_share: float = _field(0.05, "share of the steps that warm up", ge=0, lt=1)
    betas: tuple[float, float] = _field((0.9, 0.95), "AdamW")
    weight_decay: float = _field(0.0, "AdamW", ge=0)
    clip: float = _field(0.5, "largest norm of the gradient", gt=0)
    pack_tokens: int = _field(8192, "tokens of a packed step", ge=128)
    dtype: Literal["bfloat16", "float32"] = _field("bfloat16", "precision of the products")
    eval_share: float = _field(0.05, "share of samples held out, per dataset", gt=0, lt=0.5)
    checkpoint_every: int = _field(500, "optimizer steps between resumable checkpoints", ge=1)


class BenchSettings(Section):
    """Measurement of the draft against plain decoding."""

    suites: dict[Name, str] = _field(..., "suite name to JSONL file", min_length=1)
    k: int = _field(3, "draft tokens of a round", ge=1, le=16)
    max_new_tokens: int = _field(512, "tokens of an answer at most", ge=2)
    prompts_per_domain: int | None = _field(None, "prompts used of each domain; default all", ge=1)
    repeats: int = _field(3, "timed passes, with and without the draft in turn", ge=1)
    timed_prompts: int = _field(16, "prompts of a timed pass", ge=1)
    min_accept_length: float = _field(1.05, "the accept gate", ge=1)
    simulated_tolerance: float = _field(
        0.25, "largest distance between the served and the simulated accept length", gt=0
    )


class Config(Section):
    """A whole build."""

    work: str = _field(..., "folder of everything that the build makes")
    seed: int = _field(0, "seed of selection and sampling")
    engine: Literal["transformers", "sglang"] = _field("transformers", "what runs the target")
    target: TargetSettings
    datasets: dict[Name, DatasetSettings] = _field(..., "the mix", min_length=1)
    prompts: PromptsSettings = PromptsSettings()
    responses: ResponsesSettings = ResponsesSettings()
    vocab: VocabSettings = VocabSettings()
    states: StatesSettings = StatesSettings()
    drafts: dict[Name, DraftSettings] = _field({"main": DraftSettings()}, "runs", min_length=1)
    bench: BenchSettings


def validate(data: Any, text: str = "", source: str = "the configuration") -> Config:
    """Check `data` against the schema and return it typed, with defaults.

    Raises:
        ConfigError: one paragraph for each problem: line, field, value, remedy.
    """
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = [_describe(problem, text) for problem in error.errors()]
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


def _describe(problem: Any, text: str) -> str:
    # pydantic puts the chosen member of a union into the location; a reader has no such key.
    location = [part for part in problem["loc"] if part not in ("PackageSource", "PathSource")]
    lines = [f"  field:    {'.'.join(map(str, location)) or '(top level)'}"]
    line = _line_of(text, location)
    if line:
        lines.append(f"  line:     {line}")
    unknown = problem["type"] == "extra_forbidden"
    if problem["type"] != "missing" and location:
        lines.append(f"  value:    {problem['input']!r}")
    lines.append(f"  problem:  {'unknown key' if unknown else problem['msg']}")
    lines.append(f"  remedy:   {_remedy(location, unknown)}\n")
    return "\n".join(lines)


def _line_of(text: str, location: list[Any]) -> int | None:
    node = yaml.compose(text) if text else None
    line = None
    for part in location:
        if not isinstance(node, yaml.MappingNode):
            break
        for key, value in node.value:
            if key.value == str(part):
                line, node = key.start_mark.line + 1, value
                break
        else:
            break
    return line


def _remedy(location: list[Any], unknown: bool) -> str:
    schema = Config.model_json_schema()
    node: dict[str, Any] = schema
    names = location[:-1] if unknown else location
    for part in names:
        found = _child(node, part, schema)
        if found is None:
            break
        node = found
    if unknown:
        keys = sorted(_resolve(node, schema).get("properties", {}))
        return f"remove it; the keys here are {', '.join(keys)}"
    if "remedy" in node:
        return str(node["remedy"])
    return f"give {node.get('description', 'what schemas/config.schema.json describes')}"


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        return dict(schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
    return node


def _child(node: dict[str, Any], part: Any, schema: dict[str, Any]) -> dict[str, Any] | None:
    for option in [node, *node.get("anyOf", [])]:
        resolved = _resolve(option, schema)
        found = resolved.get("properties", {}).get(str(part))
        if found is None:
            found = next(iter(resolved.get("patternProperties", {}).values()), None)
        if found is not None:
            return dict(found)
    return None
