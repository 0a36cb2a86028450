"""Mathematics, science and puzzles that were answered with long thoughts."""

from typing import Any

from aerie.prompts.adapters.base import Adapter, Category
from aerie.prompts.adapters.families import Messages
from aerie.prompts.normalise import Conversation


class MixtureOfThoughts(Messages):
    id = "open-r1/Mixture-of-Thoughts"
    category = Category.REASONING
    licence = "unknown"
    attribution = "Open R1, Mixture-of-Thoughts"
    # `code`, `math` and `science` hold the rows of `all` once more.
    files = ("all/train-*.parquet",)
    columns = ("messages",)
    keeps_system = False


class OpenThoughts(Adapter):
    id = "open-thoughts/OpenThoughts-114k"
    category = Category.REASONING
    licence = "Apache-2.0"
    attribution = "Open Thoughts, OpenThoughts-114k"
    files = ("data/train-*.parquet",)
    columns = ("conversations", "system")
    keeps_system = False

    def find(self, row: dict[str, Any]) -> Conversation:
        return self.conversation(row, row["conversations"], system=row["system"])
