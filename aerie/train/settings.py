"""The sections `drafts` and `tracking` of the configuration.

`tracking` reaches jobs by the environment and is no param of a rule: none of its keys says what a
draft is, and no draft must go stale because someone wants to watch it.
"""

from typing import Any, Literal

from aerie.section import Section, key

VARIABLE = "AERIE_TRACKING"


class DraftSettings(Section):
    """Training of one draft."""

    seed: int = key(0, "seed of order and initial weights")
    intermediate_size: int | None = key(None, "width of the MLP; default: the target's")
    steps: int = key(7, "training-time-test steps", ge=1, le=16)
    decay: float = key(0.8, "weight of step i is decay^i", gt=0, le=1)
    epochs: int = key(3, "passes over the data", ge=1)
    learning_rate: float = key(1e-4, "peak of the schedule", gt=0)
    warmup_share: float = key(0.05, "share of the steps that warm up", ge=0, lt=1)
    betas: tuple[float, float] = key((0.9, 0.95), "AdamW")
    weight_decay: float = key(0.0, "AdamW", ge=0)
    clip: float = key(0.5, "largest norm of the gradient", gt=0)
    pack_tokens: int = key(8192, "tokens of a pack, the unit of a GPU's work", ge=128)
    shuffle_tokens: int | None = key(
        None, "tokens of the parts that are shuffled together; default: all are", ge=1
    )
    accumulate: int = key(1, "packs of each GPU in an optimizer step", ge=1)
    gpus: int = key(
        1, "GPUs that train together, each its own packs of a step: more make a step larger", ge=1
    )
    activation_checkpointing: bool = key(
        False,
        "compute the MLP again in the backward pass: less memory for a token, more time",
    )
    sharding: Literal["none", "optimizer", "full"] = key(
        "none",
        "what each GPU holds a share of, instead of all: the optimizer's state, or weights and "
        "gradient too",
    )
    dtype: Literal["bfloat16", "float32"] = key("bfloat16", "precision of the products")
    fp8: bool = key(
        False, "multiply the layer's activations by its weights in fp8; for an H100 or newer"
    )
    eval_share: float = key(0.05, "share of samples held out, per dataset", gt=0, lt=0.5)
    checkpoint_every: int = key(500, "optimizer steps between resumable checkpoints", ge=1)
    keep_checkpoints: int = key(2, "resumable checkpoints kept, the newest", ge=1)
    export: Literal["last", "best"] = key(
        "last", "which weights become the draft: the last, or those of the best epoch held out"
    )
    max_skipped: int = key(
        10, "steps that may be skipped, since their loss or gradient was not finite", ge=0
    )

    def recipe(self, world: int) -> dict[str, Any]:
        """What decides which weights come out, where `world` processes train: the settings without
        those of the place, and the packs of a step.
        """
        place = {"gpus", "accumulate", "sharding", "activation_checkpointing"}
        return {
            **self.model_dump(mode="json", exclude=place),
            "packs_per_step": self.accumulate * world,
        }


class WandbSettings(Section):
    """Weights & Biases. The API key is its own: `WANDB_API_KEY` or `wandb login`."""

    project: str = key(..., "project that runs are shown in", min_length=1)
    entity: str | None = key(None, "user or team of the project; default: that of the API key")
    mode: Literal["online", "offline"] = key(
        "online", "`offline` writes files alone, for a later `wandb sync`"
    )


class TrackingSettings(Section):
    """Where a training run can be watched, beside the JSON lines that are always written."""

    tensorboard: bool = key(False, "write event files for TensorBoard")
    wandb: WandbSettings | None = key(None, "send to Weights & Biases")

    @classmethod
    def from_environment(cls) -> "TrackingSettings":
        """The section that the workflow left in AERIE_TRACKING as JSON; defaults without it.

        Raises:
            ConfigError: it is not such a section.
        """
        return cls.from_variable(VARIABLE, "tracking", '{"tensorboard": true}', "docs/training.md")
