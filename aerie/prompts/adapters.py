"""Adapters: one small class a dataset, which says where its prompts are.

A new dataset is a new class in this module: its Hugging Face id, category, licence, files and
columns, and for an unusual schema the method `find`. `docs/prompts.md` shows one.
"""

import re
from typing import Any, ClassVar

from aerie.contracts.prompts import Reason
from aerie.errors import ConfigError
from aerie.prompts.normalise import (
    Conversation,
    Rejected,
    list_of_turns,
    role_of,
    text_of,
)

_REGISTRY: dict[str, type["Adapter"]] = {}


class Adapter:
    """How to read one dataset. Subclasses that set `id` register themselves.

    `files` are patterns inside the downloaded folder, `columns` must exist in every file and
    `optional` may. `keeps_system` is off where the system text teaches another model's habits.
    """

    id: ClassVar[str]
    category: ClassVar[str]
    licence: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    keeps_system: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        if "id" in cls.__dict__:
            _REGISTRY[cls.id] = cls

    def find(self, row: dict[str, Any]) -> Conversation:
        """The conversation of a row that holds `columns` and `optional`, None where one is not.

        Raises:
            Rejected: the row is not one of those that this dataset is read for.
        """
        raise NotImplementedError


def adapter(id: str) -> Adapter:
    """The adapter of a dataset.

    Raises:
        ConfigError: there is none of that id.
    """
    if id not in _REGISTRY:
        raise ConfigError(
            f"there is no adapter {id!r}",
            expected="one of " + ", ".join(sorted(_REGISTRY)),
            remedy="correct `adapter` of the dataset, or add one as docs/prompts.md shows",
        )
    return _REGISTRY[id]()


def adapters() -> dict[str, type[Adapter]]:
    """All adapters by id, sorted."""
    return dict(sorted(_REGISTRY.items()))


class _Messages(Adapter):
    """Turns in one column, the first of `columns`."""

    def find(self, row: dict[str, Any]) -> Conversation:
        return Conversation(row[self.columns[0]], tools=row.get("tools"))


class _Instruction(Adapter):
    """A single question in the first of `columns`."""

    def find(self, row: dict[str, Any]) -> Conversation:
        return Conversation([{"role": "user", "content": row[self.columns[0]]}])


class _Issue(Adapter):
    """A trajectory whose first user turn wraps an issue in text that belongs to another agent."""

    keeps_system = False
    issue: ClassVar[re.Pattern[str]]
    notes: ClassVar[frozenset[str]] = frozenset()

    def extract(self, messages: Any, identity: str | None = None) -> Conversation:
        flags: set[str] = set()
        turns = list_of_turns(messages, flags)
        first = next((turn for turn in turns if role_of(turn) == "user"), None)
        if first is None:
            raise Rejected(Reason.NO_USER_TURN)
        text = text_of(first, flags)
        found = self.issue.search(text)
        if not text.strip():
            raise Rejected(Reason.EMPTY_PROMPT, "the first user turn is empty")
        if found is None:
            raise Rejected(Reason.NO_ISSUE_TEXT, f"no match of {self.issue.pattern}")
        question = {"role": "user", "content": found[1].strip()}
        flags |= {"issue_extracted", *self.notes}
        return Conversation([question], identity=identity, flags=frozenset(flags))


class SweAgentTrajectories(_Issue):
    id = "nebius/SWE-agent-trajectories"
    category = "agentic coding"
    licence = "CC-BY-4.0"
    files = ("data/train-*.parquet",)
    columns = ("instance_id", "trajectory")
    issue = re.compile(r"^ISSUE:(.*)^INSTRUCTIONS:", re.MULTILINE | re.DOTALL)

    def find(self, row: dict[str, Any]) -> Conversation:
        # 80K rows are runs over a few thousand issues.
        return self.extract(row["trajectory"], identity=row["instance_id"])


class DeepSweTrajectories(_Issue):
    id = "SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K"
    category = "agentic coding"
    licence = "unknown"
    files = ("*.jsonl",)
    columns = ("messages",)
    issue = re.compile(r"<github_issue>(.*)</github_issue>", re.DOTALL)
    # By Kimi-K2 through an XML protocol: not an answer that Kimi-K2.5 would give token for token.
    notes = frozenset({"not_target_native"})

    def find(self, row: dict[str, Any]) -> Conversation:
        return self.extract(row["messages"])


class MixtureOfThoughts(_Messages):
    id = "open-r1/Mixture-of-Thoughts"
    category = "reasoning"
    licence = "unknown"
    # `code`, `math` and `science` hold the rows of `all` once more.
    files = ("all/train-*.parquet",)
    columns = ("messages",)
    keeps_system = False


class OpenThoughts(Adapter):
    id = "open-thoughts/OpenThoughts-114k"
    category = "reasoning"
    licence = "Apache-2.0"
    files = ("data/train-*.parquet",)
    columns = ("system", "conversations")
    keeps_system = False

    def find(self, row: dict[str, Any]) -> Conversation:
        return Conversation(row["conversations"], system=row["system"])


class OpenCodeInstruct(_Instruction):
    id = "nvidia/OpenCodeInstruct"
    category = "coding instructions"
    licence = "CC-BY-4.0"
    files = ("data/train-*.parquet",)
    columns = ("input",)
    optional = ("average_test_score",)
    least_score = 0.8

    def find(self, row: dict[str, Any]) -> Conversation:
        # Text in the repository, a number in exports of it; absent or odd does not mean bad.
        try:
            score = float(row["average_test_score"])
        except (TypeError, ValueError):
            score = self.least_score
        if score < self.least_score:
            raise Rejected(Reason.FILTERED, f"average_test_score {score} < {self.least_score}")
        return super().find(row)


class MagicoderEvolInstruct(_Instruction):
    id = "ise-uiuc/Magicoder-Evol-Instruct-110K"
    category = "multi-language coding"
    licence = "Apache-2.0"
    files = ("data-evol_instruct-decontaminated.jsonl",)
    columns = ("instruction",)


class ShareGpt(Adapter):
    id = "anon8231489123/ShareGPT_Vicuna_unfiltered"
    category = "general chat"
    licence = "Apache-2.0"
    files = ("ShareGPT_V3_unfiltered_cleaned_split.json",)
    columns = ("conversations",)
    optional = ("id",)

    def find(self, row: dict[str, Any]) -> Conversation:
        # Long conversations were cut into chunks: `abc_0` begins one, `abc_5` goes on with it.
        chunk = re.search(r"_(\d+)$", str(row["id"]))
        flags = {"chunk_continuation"} if chunk and int(chunk[1]) else set()
        return Conversation(row["conversations"], flags=frozenset(flags))


class UltraChat(_Messages):
    id = "HuggingFaceH4/ultrachat_200k"
    category = "general chat"
    licence = "MIT"
    # `train_gen` repeats prompts of `train_sft`; the test splits are for evaluation.
    files = ("data/train_sft-*.parquet",)
    columns = ("messages",)


class OpenPerfectBlend(_Messages):
    id = "mlabonne/open-perfectblend"
    category = "mixed instructions"
    licence = "Apache-2.0"
    files = ("data/train-*.parquet",)
    columns = ("conversations",)


class InfinityInstruct(_Messages):
    id = "BAAI/Infinity-Instruct"
    category = "large synthetic"
    licence = "CC-BY-SA-4.0"
    # The other configurations are earlier or larger cuts of the same rows.
    files = ("0625/*.parquet",)
    columns = ("conversations",)


class GenericMessages(_Messages):
    """A folder of one's own: `messages` and, where there are tools, `tools`."""

    id = "generic/messages"
    category = "own data"
    licence = "unknown"
    files = ("**/*.jsonl", "**/*.parquet")
    columns = ("messages",)
    optional = ("tools",)
