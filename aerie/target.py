"""The target as an artifact: a plain checkpoint folder and its sidecar `target.json`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.contracts.sidecar import read_whole
from aerie.errors import ContractError
from aerie.files import read_json

# Weights may be a terabyte: of larger files than this the size alone is checked.
_CHECKED_BYTES = 64_000_000

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Target:
    """What the phases need to know of the target without loading it.

    `revision` is the digest of its files. `end_token_ids` end an answer; `special_token_ids` are
    all that the tokenizer treats as special, sorted. `trust_remote_code`: its tokenizer is code
    in the folder, which the configuration allows to run.
    """

    folder: Path
    name: str
    revision: str
    dtype: str
    layers: int
    hidden_size: int
    vocab_size: int
    max_position: int
    end_token_ids: tuple[int, ...]
    special_token_ids: tuple[int, ...]
    thinking_variable: str | None
    trust_remote_code: bool = False

    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer with the chat template, read from the folder and never from a hub."""
        kind = read_json(self.folder / "tokenizer_config.json").get("tokenizer_class")
        found: Any
        # A tokenizer.json says all there is; importing AutoTokenizer imports torch, for seconds.
        if kind in ("TokenizersBackend", "PreTrainedTokenizerFast"):
            from transformers import PreTrainedTokenizerFast

            found = PreTrainedTokenizerFast
        else:
            from transformers import AutoTokenizer

            found = AutoTokenizer
        tokenizer: PreTrainedTokenizerBase = found.from_pretrained(
            self.folder, local_files_only=True, trust_remote_code=self.trust_remote_code
        )
        return tokenizer


def read_target(sidecar: Path) -> Target:
    """Read `target.json`, and check the files beside it against it, large ones by size alone.

    Raises:
        ContractError: it is missing or of another contract version, or a file is not its own.
    """
    content = read_whole(sidecar, "target", up_to=_CHECKED_BYTES)
    try:
        counts, provenance = content["counts"], content["provenance"]
        return Target(
            folder=sidecar.parent,
            name=provenance["name"],
            revision=provenance["revision"],
            dtype=provenance["dtype"],
            layers=counts["layers"],
            hidden_size=counts["hidden_size"],
            vocab_size=counts["vocab_size"],
            max_position=counts["max_position"],
            end_token_ids=tuple(provenance["end_token_ids"]),
            special_token_ids=tuple(provenance["special_token_ids"]),
            thinking_variable=provenance["thinking_variable"],
            trust_remote_code=provenance.get("trust_remote_code", False) is True,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ContractError(
            f"{sidecar} does not describe a target",
            saw=repr(error),
            remedy=f"remove {sidecar} and run the build again",
        ) from error


def decoder_config(folder: Path) -> dict[str, Any]:
    """The decoder in a checkpoint's config.json: models that also see, Kimi-K2.5 among them, nest
    it.
    """
    content: dict[str, Any] = read_json(folder / "config.json")
    nested: dict[str, Any] = content.get("text_config") or content
    return nested


def render(
    tokenizer: "PreTrainedTokenizerBase",
    target: Target,
    messages: list[dict[str, Any]],
    mode: str,
    tools: list[dict[str, Any]] | None = None,
    *,
    opens_answer: bool = True,
) -> list[int]:
    """Token ids of a conversation, up to where the target's next answer begins or to its end."""
    variables = {target.thinking_variable: mode == "thinking"} if target.thinking_variable else {}
    template: Any = tokenizer.apply_chat_template
    ids: list[int] = template(
        messages, tools=tools, add_generation_prompt=opens_answer, return_dict=False, **variables
    )
    return ids
