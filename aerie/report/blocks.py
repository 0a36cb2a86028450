"""What a page is made of: sections of figures, tables, facts and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup


@dataclass(frozen=True)
class Source:
    """The file that a figure came from: `label` for people, `href` relative to the page."""

    label: str
    href: str


@dataclass(frozen=True)
class Chips:
    """A cell that holds several short codes, each with a note."""

    items: Sequence[tuple[str, str]]
    kind: str = "chips"


@dataclass(frozen=True)
class Table:
    """A table. Columns from `numeric_from` on hold numbers; `footer` is a row of totals.

    A `folded` table is long and of use to few: it opens on demand.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Chips]]
    numeric_from: int = 1
    footer: Sequence[str] | None = None
    sources: Sequence[Source] = ()
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Key:
    """One entry of a legend: the class of the mark and what it stands for."""

    mark: str
    name: str


@dataclass(frozen=True)
class Figure:
    """A chart with its legend, and the same numbers as a table."""

    title: str
    chart: Markup
    table: Table
    sources: Sequence[Source]
    note: str = ""
    legend: Sequence[Key] = ()
    kind: str = "figure"


@dataclass(frozen=True)
class Gallery:
    """Small figures, or facts, side by side where there is room."""

    blocks: "Sequence[Figure | Facts]"
    kind: str = "gallery"


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    title: str
    items: Sequence[tuple[str, str]]
    sources: Sequence[Source] = ()
    kind: str = "facts"


@dataclass(frozen=True)
class Prose:
    """A paragraph; `heading` begins a part of a section."""

    text: str
    heading: str = ""
    kind: str = "prose"


@dataclass(frozen=True)
class Section:
    """A section of the page, with a short name for the navigation."""

    id: str
    title: str
    nav: str
    lead: str = ""
    blocks: list["Figure | Gallery | Table | Facts | Prose"] = field(default_factory=list)
