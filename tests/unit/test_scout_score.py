"""Relevance: each measure by its documented formula, bounded, monotone, and documented."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.config import ROOT, ScoutSettings, validate
from aerie.errors import ConfigError
from aerie.prompts.adapters import adapters
from aerie.scout import card
from aerie.scout.adapters import fit
from aerie.scout.categories import CATEGORIES, SUGGESTED
from aerie.scout.details import Details
from aerie.scout.listing import Listed, bounds_of, middle
from aerie.scout.score import Score, score
from tests.unit.scout_fixtures import CODING
from tests.unit.test_config import changed

SETTINGS = ScoutSettings()


def scored(listed: Listed, details: Details | None = None, **weights: float) -> Score:
    fits = fit(listed.id, details.columns if details else ())
    given = SETTINGS.weights.model_dump() | weights
    return score(listed, details, fits, CODING, SETTINGS.traffic, given)


def measure(name: str, listed: Listed, details: Details | None = None) -> float:
    every = scored(listed, details).measures.values()
    return next(each.value for measures in every for each in measures if each.name == name)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(None, 0.3), (10, 0.0), (1000, 0.0), (10_000, 1 / 3), (1_000_000, 1.0), (10**8, 1.0)],
)
def test_size(rows: int | None, expected: float) -> None:
    details = Details(rows=rows, rows_from="card")
    assert measure("size", Listed("a/b", "c"), details) == pytest.approx(expected, abs=1e-4)


def test_size_by_tag_alone() -> None:
    listed = Listed("a/b", "c", tags=("size_categories:10K<n<100K",))
    assert measure("size", listed) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("licence", "gated", "expected"),
    [
        ("apache-2.0", "no", 1.0),
        ("mit", "auto", 0.8),
        ("cc-by-4.0", "manual", 0.5),
        ("cc-by-sa-4.0", "no", 0.7),
        ("gpl-3.0", "no", 0.7),
        ("odc-by", "no", 1.0),
        ("cc-by-nc-4.0", "no", 0.0),
        ("cc-by-nc-sa-4.0", "no", 0.0),
        ("cc-by-nd-4.0", "no", 0.0),
        ("other (nvidia-research)", "no", 0.0),
        ("llama3", "no", 0.4),
        ("other", "no", 0.4),
        ("unknown", "no", 0.3),
    ],
)
def test_usable(licence: str, gated: str, expected: float) -> None:
    listed = Listed("a/b", "c", gated=gated)
    assert measure("usable", listed, Details(licence=licence)) == pytest.approx(expected)


def test_adoption() -> None:
    assert measure("adoption", Listed("a/b", "c")) == 0.3
    assert measure("adoption", Listed("a/b", "c", downloads=99_999, likes=999)) == 1.0
    assert measure("adoption", Listed("a/b", "c", downloads=0, likes=0)) == 0.0


@pytest.mark.parametrize(
    ("id", "columns", "kind", "adapter"),
    [
        ("nvidia/OpenCodeInstruct", (), "exact", "nvidia/OpenCodeInstruct"),
        ("a/b", ("messages", "trajectory"), "family", "issue"),
        ("a/b", ("conversations", "id"), "family", "messages"),
        ("a/b", ("question", "answer"), "family", "instruction"),
        ("a/b", ("text",), "none", None),
        ("a/b", (), "unknown", None),
    ],
)
def test_fit(id: str, columns: tuple[str, ...], kind: str, adapter: str | None) -> None:
    found = fit(id, columns)
    assert (found.kind, found.adapter) == (kind, adapter)


@pytest.mark.parametrize(
    ("id", "tags", "expected"),
    [
        ("a/OpenCodeInstruct", (), 1.0),  # CamelCase: code, instruct
        ("a/code-set", (), 0.5),
        ("a/decoded-set", (), 0.0),  # a word that only contains one
        ("a/b", ("python", "code"), 1.0),
    ],
)
def test_terms(id: str, tags: tuple[str, ...], expected: float) -> None:
    assert measure("terms", Listed(id, "c", tags=tags)) == expected


def test_other_modalities_and_runs_count_against() -> None:
    listed = Listed("a/b", "c", tags=("modality:image", "modality:text"))
    assert measure("text", listed) == 0.0
    runs = Details(columns=("instance_id", "trajectory"))
    assert measure("distinct", Listed("a/b", "c"), runs) == 0.0
    assert measure("distinct", Listed("a/b", "c"), Details(columns=("prompt",))) == 1.0


WORDS = st.text("abcdefgkim-/<>0123456789:", max_size=12)
LISTED = st.builds(
    Listed,
    id=st.builds("{}/{}".format, st.text("abcode", min_size=1), st.text("abcode", min_size=1)),
    revision=st.just("c"),
    tags=st.lists(
        st.builds(
            "{}:{}".format,
            st.sampled_from(["language", "license", "size_categories", "modality"]),
            WORDS,
        )
    ).map(tuple),
    description=WORDS,
    downloads=st.none() | st.integers(0, 10**9),
    likes=st.none() | st.integers(0, 10**6),
    gated=st.sampled_from(["no", "auto", "manual"]),
    found_by=st.lists(WORDS, max_size=9).map(tuple),
)
DETAILS = st.none() | st.builds(
    Details,
    rows=st.none() | st.integers(0, 10**12),
    columns=st.lists(WORDS).map(tuple),
    configurations=st.dictionaries(WORDS, st.none() | st.integers(0, 10**9), max_size=4),
    licence=WORDS,
)
WEIGHT = st.floats(0.01, 100)


@given(listed=LISTED, details=DETAILS, diversity=WEIGHT, quality=WEIGHT, match=WEIGHT)
def test_scores_are_bounded_means(
    listed: Listed, details: Details | None, **weights: float
) -> None:
    result = scored(listed, details, **weights)
    for criterion, measures in result.measures.items():
        assert all(0 <= each.value <= 1 and each.reason for each in measures)
        values = [each.value for each in measures]
        assert result.criteria[criterion] == pytest.approx(sum(values) / len(values), abs=1e-4)
    total = sum(weights[name] * value for name, value in result.criteria.items())
    assert result.value == pytest.approx(total / sum(weights.values()), abs=1e-4)
    assert len(result.reasons()) == sum(map(len, result.measures.values()))


@given(listed=LISTED, more=st.integers(1, 10**6), rows=st.integers(1, 10**9))
def test_more_is_never_worse(listed: Listed, more: int, rows: int) -> None:
    grown = Listed(
        **{**vars(listed), "downloads": (listed.downloads or 0) + more, "likes": listed.likes or 0}
    )
    base = Listed(
        **{**vars(listed), "downloads": listed.downloads or 0, "likes": listed.likes or 0}
    )
    assert scored(grown).value >= scored(base).value
    fewer, many = Details(rows=rows), Details(rows=rows + more)
    assert scored(listed, many).value >= scored(listed, fewer).value


@given(
    st.dictionaries(
        st.sampled_from(["license", "license_name", "dataset_info", "configs", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        [
                            "features",
                            "splits",
                            "num_examples",
                            "name",
                            "config_name",
                            "download_size",
                        ]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        ),
    )
)
def test_no_card_is_too_odd_to_read(data: dict[str, Any]) -> None:
    for rows, columns in card.configurations(data).values():
        assert rows is None or isinstance(rows, int)
        assert all(isinstance(name, str) for name in columns)
    size, licence = card.download_bytes(data), card.licence(data)
    assert size is None or isinstance(size, int)
    assert licence is None or isinstance(licence, str)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("n<1K", (100, 1000)),
        ("100K<n<1M", (100_000, 1_000_000)),
        ("n>1T", (10**12, 10**13)),
        ("1M<n<10M", (10**6, 10**7)),
        ("unknown", None),
        ("n<>1K", None),
        ("", None),
        ("x<n<1M", None),
    ],
)
def test_size_tags(text: str, bounds: tuple[int, int] | None) -> None:
    assert bounds_of(text) == bounds
    if bounds:
        assert bounds[0] <= middle(bounds) <= bounds[1]


def test_every_measure_is_documented() -> None:
    text = (ROOT / "docs" / "scout.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| (\w+) \| (\w+) \| ", text, flags=re.MULTILINE))
    computed = {
        (criterion, each.name)
        for criterion, measures in scored(Listed("a/b", "c")).measures.items()
        for each in measures
    }
    assert computed == rows - {("criterion", "measure")}
    for category in CATEGORIES.values():
        assert f"| `{category.key}` | {category.purpose} |" in text


def test_every_adapter_is_of_a_category() -> None:
    """Else the scout would not look it up, and the report not say that Aerie reads it."""
    names = {category.name for category in CATEGORIES.values()} | {"own data"}
    assert {each.category for each in adapters().values()} <= names


def test_suggestions_are_of_categories() -> None:
    assert [each.number for each in SUGGESTED] == list(range(1, 11))
    assert {each.category for each in SUGGESTED} <= set(CATEGORIES)
    assert len(CATEGORIES) == 10


def test_settings_are_checked() -> None:
    assert validate(changed("scout.candidates", 30)).scout.candidates == 30
    for path, value in [("scout.candidates", 5), ("scout.weights.match", 0), ("scout.trafic", [])]:
        with pytest.raises(ConfigError, match=path.replace(".", r"\.")):
            validate(changed(path, value))
