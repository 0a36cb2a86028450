"""What the Hub's list of datasets says about one of them, before anything of it is read."""

import math
import re
from dataclasses import dataclass, field

from huggingface_hub import DatasetInfo
from huggingface_hub.hf_api import ExpandDatasetProperty_T

# All that a listing is asked for: enough to rank by, and the commit that names the cached rest.
EXPAND: list[ExpandDatasetProperty_T] = [
    "description",
    "disabled",
    "downloads",
    "gated",
    "lastModified",
    "likes",
    "private",
    "sha",
    "tags",
]


@dataclass(frozen=True)
class Listed:
    """One dataset as the searches of one category found it.

    `gated` is `no`, `auto` (open to whoever accepts the terms) or `manual` (the authors decide).
    `last_change` is the Hub's, in ISO 8601.
    """

    id: str
    revision: str
    tags: tuple[str, ...] = ()
    description: str = ""
    downloads: int | None = None
    likes: int | None = None
    gated: str = "no"
    last_change: str | None = None
    found_by: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, info: DatasetInfo, found_by: str) -> "Listed":
        """From what the client returns."""
        return cls(
            id=info.id,
            revision=info.sha or "",
            tags=tuple(sorted(info.tags or ())),
            description=" ".join((info.description or "").split()),
            downloads=info.downloads,
            likes=info.likes,
            gated=info.gated or "no",
            last_change=info.last_modified.isoformat() if info.last_modified else None,
            found_by=(found_by,),
        )

    def tagged(self, kind: str) -> tuple[str, ...]:
        """Values of the tags `kind:value`."""
        return tuple(tag.split(":", 1)[1] for tag in self.tags if tag.startswith(f"{kind}:"))

    def words(self) -> str:
        """Id, tags and description in lower case, CamelCase also as separate words."""
        text = " ".join([self.id, *self.tags, self.description])
        return f"{text} {re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', text)}".lower()


def bounds_of(size_category: str) -> tuple[int, int] | None:
    """The rows that a tag such as `100K<n<1M`, `n<1K` or `n>1T` allows; None for another text.

    An open end is taken as a factor of ten.
    """
    found = re.fullmatch(r"(?:(\w+)<)?n([<>])(\w+)", size_category)
    if not found:
        return None
    numbers = [_count(text) for text in (found[1], found[3]) if text]
    if not numbers or None in numbers:
        return None
    edge = [number for number in numbers if number is not None]
    if len(edge) == 2:
        return edge[0], edge[1]
    return (edge[0], edge[0] * 10) if found[2] == ">" else (edge[0] // 10, edge[0])


def middle(bounds: tuple[int, int]) -> int:
    """The geometric mean: the size of a dataset of which only the order of magnitude is known."""
    return round(math.sqrt(max(bounds[0], 1) * bounds[1]))


def _count(text: str) -> int | None:
    found = re.fullmatch(r"(\d+)([KMBT]?)", text)
    power = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}
    return int(found[1]) * 10 ** power[found[2]] if found else None
