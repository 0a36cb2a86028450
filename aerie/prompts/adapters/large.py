"""Sets of many sources or of many generated prompts, to choose from."""

from aerie.prompts.adapters.base import Category
from aerie.prompts.adapters.families import Instruction, Messages


class OpenPerfectBlend(Messages):
    id = "mlabonne/open-perfectblend"
    category = Category.EAGLE3
    licence = "Apache-2.0"
    attribution = "Maxime Labonne, open-perfectblend"
    files = ("data/train-*.parquet",)
    columns = ("conversations",)


class InfinityInstruct(Messages):
    id = "BAAI/Infinity-Instruct"
    category = Category.SYNTHETIC
    licence = "CC-BY-SA-4.0"
    attribution = "BAAI, Infinity-Instruct"
    share_alike = True
    # The other configurations are earlier or larger cuts of the same rows.
    files = ("0625/*.parquet",)
    columns = ("conversations",)


class Magpie(Instruction):
    id = "Magpie-Align/Magpie-Qwen2.5-Pro-1M-v0.1"
    category = Category.SYNTHETIC
    # It follows that of the model that wrote it, Qwen2.5-72B, and the card was not seen.
    licence = "unknown"
    attribution = "Magpie Alignment, Magpie-Qwen2.5-Pro-1M-v0.1"
    files = ("data/train-*.parquet",)
    columns = ("instruction",)
    id_column = "uuid"


class SmolTalk(Messages):
    id = "HuggingFaceTB/smoltalk"
    category = Category.SYNTHETIC
    licence = "Apache-2.0"
    attribution = "Hugging Face, SmolTalk"
    # The other configurations are its parts.
    files = ("data/all/train-*.parquet",)
    columns = ("messages",)
