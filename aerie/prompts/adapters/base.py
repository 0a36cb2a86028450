"""What an adapter is: a class of facts about a dataset, and one method that reads a row."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from enum import StrEnum
from typing import Any, ClassVar

from aerie.prompts.normalise import Conversation

REGISTRY: dict[str, type["Adapter"]] = {}


class Category(StrEnum):
    """What a dataset is taken for; the scout searches the same ten."""

    CODING = "coding instructions"
    AGENTIC = "agentic and tool use"
    REASONING = "reasoning and mathematics"
    CHAT = "general chat"
    EAGLE3 = "EAGLE-3 training sets"
    REVIEW = "code review and debugging"
    LONG_FORM = "long-form writing"
    FAMILY = "DeepSeek and Kimi specific"
    MULTI_LANGUAGE = "multi-language coding"
    SYNTHETIC = "large synthetic sets"
    OWN = "own data"


class Adapter(ABC):
    """How to read one dataset. Subclasses that set `id` register themselves.

    What it is: `licence` is an SPDX identifier or "unknown", `attribution` the text that the
    licence table owes its makers, `share_alike` whether prompts may be passed on under this licence
    alone, `gated` whether the Hub asks for consent before a download. `native` names the model that
    the answers are claimed to be of, where that is a target of ours.

    Where it is: `files` are patterns inside the downloaded folder, `columns` must exist in every
    file and `optional` may, except that one of `one_of` must: a column that changed its name
    between revisions. `stratum` is the column by which the selection is spread, `id_column` holds a
    row's own id. `keeps_system` is off where the system text teaches another model's habits.
    """

    id: ClassVar[str]
    category: ClassVar[Category]
    licence: ClassVar[str]
    attribution: ClassVar[str]
    share_alike: ClassVar[bool] = False
    gated: ClassVar[bool] = False
    native: ClassVar[str | None] = None

    files: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    one_of: ClassVar[tuple[str, ...]] = ()
    stratum: ClassVar[str | None] = None
    id_column: ClassVar[str] = "id"
    keeps_system: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        if "id" in cls.__dict__:
            REGISTRY[cls.id] = cls

    @abstractmethod
    def find(self, row: dict[str, Any]) -> Conversation:
        """The conversation of a row that holds `wanted()`, None where a column is missing.

        Raises:
            Rejected: the row is not one of those that this dataset is read for.
        """

    @classmethod
    def wanted(cls) -> tuple[str, ...]:
        """All columns that are read."""
        return (*cls.columns, *cls.optional)

    @classmethod
    def lacks(cls, names: Collection[str]) -> str | None:
        """The first needed column that is not among `names`, as an error should call it."""
        missing = [column for column in cls.columns if column not in names]
        if cls.one_of and not set(cls.one_of) & set(names):
            missing.append(" or ".join(cls.one_of))
        return missing[0] if missing else None

    def conversation(self, row: dict[str, Any], messages: Any, **more: Any) -> Conversation:
        """`messages` as a conversation, with the row's stratum and the dataset's claim."""
        stratum = row.get(self.stratum) if self.stratum else None
        return Conversation(
            messages,
            stratum=None if stratum is None else str(stratum),
            native=self.native is not None,
            **more,
        )
