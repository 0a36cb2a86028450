"""The report and the summary: complete, safe against hostile text, calm about missing numbers."""

import dataclasses
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from aerie.bench.breakeven import ceiling
from aerie.config import ROOT
from aerie.contracts import VERSIONS
from aerie.errors import ConfigError, ContractError
from aerie.lock import write_lock
from aerie.pins import read_pins
from aerie.report.charts import axis, thinned
from aerie.report.collect import Inputs, collect
from aerie.report.page import write_report
from aerie.report.summary import print_summary
from aerie.report.text import percent
from aerie.report.verdict import verdict
from tests.unit.report_fixtures import DATASETS, HOSTILE, bench, sidecar, write, write_build

SECTIONS = [
    "verdict",
    "domains",
    "positions",
    "training",
    "coverage",
    "data",
    "licences",
    "models",
    "gates",
    "lock",
    "glossary",
]
VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}
OPTIONAL = ("draft", "eval", "train", "coverage", "map", "target", "lock")


class Page(HTMLParser):
    """Parses a page strictly: every element must be closed by its own end tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> inside {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def page_of(inputs: Inputs, out: Path) -> tuple[Page, str]:
    write_report(inputs, out)
    text = out.read_text(encoding="utf-8")
    return Page(text), text


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inputs, Path]:
    work = tmp_path_factory.mktemp("work")
    return write_build(work), work / "report" / "index.html"


def test_the_fixture_matches_the_schema() -> None:
    schema = json.loads((ROOT / "schemas" / "bench.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for content in (bench(), bench(None), bench(0.9)):
        validator.validate(content)
    broken = bench()
    broken["positions"][0]["joint"] = 1.2
    assert list(validator.iter_errors(broken))


@pytest.mark.parametrize("name", ["scaling", "map_study", "mix_study", "rolling"])
def test_the_studies_match_their_schemas(build: tuple[Inputs, Path], name: str) -> None:
    schema = json.loads((ROOT / f"schemas/{name}.schema.json").read_text(encoding="utf-8"))
    content = json.loads(getattr(build[0], name).read_text(encoding="utf-8"))
    assert not list(jsonschema.Draft202012Validator(schema).iter_errors(content))


def test_every_section_is_there_in_order(build: tuple[Inputs, Path]) -> None:
    page, _ = page_of(*build)
    assert [ident for ident in page.ids if ident in SECTIONS] == SECTIONS
    assert len(page.ids) == len(set(page.ids)), "an id is used twice"
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert {f"#{name}" for name in SECTIONS} <= set(links)


def test_the_verdict_comes_first_with_its_numbers(build: tuple[Inputs, Path]) -> None:
    page, _ = page_of(*build)
    text = " ".join(page.text)
    head = text[: text.index("Where it helps")]
    for part in ("The draft pays", "1.47 [1.42, 1.52]", "28.1", "34.8", "1.24", "1.19"):
        assert part in head


def test_the_studies_are_told(build: tuple[Inputs, Path]) -> None:
    page, _ = page_of(*build)
    text = " ".join(page.text)
    for part in (
        "2 answers of main / heldout left out as degenerate (2 loop)",
        "with them the accept length would read 1.55 instead of 1.47",
        "Speed-up by concurrency and draft length k",
        "missed by 1.53",
        "costs 12.5 GPU-hours",
        "10 times the data",
        "8,192 (this build)",
        "Which dataset helps which domain",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("pair", "goal", "k", "most", "words"),
    [
        ((3.0, 3.2), 3.0, 3, 3.9, "reached"),
        ((2.6, 2.9), 3.0, 3, 3.9, "missed by 0.25"),
        ((2.6, 3.1), 3.0, 3, 3.9, "undecided: the interval holds it"),
        (None, 3.0, 3, 3.9, "undecided: too few prompts for an interval"),
        ((2.6, 2.9), 3.0, 1, 2.0, "out of reach: a round of 1 draft tokens gives 2 at most"),
        ((2.6, 2.9), 3.0, 3, 2.95, "out of reach: the map leaves out too many tokens"),
    ],
)
def test_the_goal_is_set_against_what_was_reached_and_what_can_be(
    build: tuple[Inputs, Path], pair: list[float] | None, goal: float, k: int, most: float,
    words: str,
) -> None:  # fmt: skip
    inputs, out = build
    assert inputs.coverage is not None
    share = coverage_of(most, k)
    write(inputs.coverage, {**json.loads(inputs.coverage.read_text()), "overall": share})
    content = bench() | {
        "accept_length": 2.75, "accept_length_ci95": pair, "k": k, "goal_accept_length": goal,
    }  # fmt: skip
    inputs = dataclasses.replace(inputs, bench=[write(inputs.bench[0], content)])
    text = " ".join(page_of(inputs, out)[0].text)
    assert words in text
    assert f"Most that the map allows {most:.2f}" in text


def coverage_of(most: float, k: int) -> float:
    """The coverage whose ceiling is `most`, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ceiling(middle, k) < most else (low, middle)
    return high


def test_answers_that_differ_are_shown_with_their_precision(build: tuple[Inputs, Path]) -> None:
    """In float32 they would be a fault, in bfloat16 they are its rounding."""
    page, _ = page_of(*build)
    assert f"116 of 120, {percent(0.9667)}, in bfloat16" in page.text


def test_studies_that_were_not_made_are_named(build: tuple[Inputs, Path]) -> None:
    inputs, out = build
    page, _ = page_of(
        dataclasses.replace(inputs, scaling=None, map_study=None, mix_study=None), out
    )
    text = " ".join(page.text)
    assert "`make scaling`" in text
    assert "`make map-study`" in text
    assert "`make mix-study`" in text


def test_nothing_is_loaded_from_outside(build: tuple[Inputs, Path]) -> None:
    page, text = page_of(*build)
    for tag, attrs in page.tags:
        assert tag not in ("script", "iframe", "object", "embed", "img", "base")
        for name in ("src", "href", "srcset", "data"):
            value = attrs.get(name) or ""
            assert not re.match(r"(?i)\s*([a-z][a-z0-9+.-]*:|//)(?<!data:)", value), (tag, value)
    assert not re.search(r"@import|url\(|http", text)


def test_every_source_link_leads_to_a_file(build: tuple[Inputs, Path]) -> None:
    inputs, out = build
    page, _ = page_of(inputs, out)
    hrefs = {str(attrs["href"]) for tag, attrs in page.tags if tag == "a"}
    files = {href for href in hrefs if not href.startswith("#")}
    assert len(files) >= 8
    for href in files:
        assert (out.parent / href).exists(), href


def test_charts_and_tables_are_accessible(build: tuple[Inputs, Path]) -> None:
    page, text = page_of(*build)
    charts = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("role") == "img"]
    assert len(charts) >= 10
    for attrs in charts:
        assert all(ident in page.ids for ident in (attrs["aria-labelledby"] or "").split())
    tables = sum(tag == "table" for tag, _ in page.tags)
    assert tables == sum(tag == "caption" for tag, _ in page.tags) == text.count("</caption>")
    assert sum(tag == "figure" for tag, _ in page.tags) <= tables


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    names = ["<img src=x onerror=alert(1)>", "plain"]
    inputs = write_build(tmp_path, names=["plain"], hostile=True)
    content = bench(names=names)
    content["verdict"]["words"] = HOSTILE
    content["definitions"]["made_up"] = HOSTILE + "\x00\x1b[31m\ud800"
    content["hardware"]["cpu"] = HOSTILE
    write(inputs.bench[0], content)
    page, text = page_of(inputs, tmp_path / "report" / "index.html")
    assert not any(tag in ("script", "img") for tag, _ in page.tags)
    assert "<script" not in text
    assert "<img" not in text
    assert "49" not in re.findall(r"alert\(.{0,40}", text)[0]
    assert "\x00" not in text
    assert "\x1b" not in text
    assert HOSTILE in "".join(page.text)


def _without_numbers(value: Any) -> Any:
    """`value` with every number replaced by null."""
    if isinstance(value, dict):
        return {key: _without_numbers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_numbers(entry) for entry in value]
    return None if isinstance(value, int | float) and not isinstance(value, bool) else value


@pytest.mark.parametrize("hollow", [_without_numbers, lambda value: {}, lambda value: None])
def test_missing_numbers_are_dashes(tmp_path: Path, hollow: Any) -> None:
    inputs = write_build(tmp_path)
    for field in dataclasses.fields(inputs):
        found = getattr(inputs, field.name)
        for path in found if isinstance(found, list) else [found]:
            if path.suffix == ".json":
                write(path, hollow(json.loads(path.read_text(encoding="utf-8"))))
    page, text = page_of(inputs, tmp_path / "report" / "index.html")
    assert "—" in text
    assert not re.search(r"\b(None|nan|inf|null)\b", " ".join(page.text))


def test_rolling_capture_says_what_it_cost(tmp_path: Path) -> None:
    _, text = page_of(write_build(tmp_path), tmp_path / "report" / "index.html")
    for words in (
        "Rolling capture", "5, 2 to 3 of each", "205,000 s", "43,210 s", "9.2 TB",
        "3.9 TB of 4.0 TB", "2 parts, captured while the draft was trained",
    ):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize("left_out", [*OPTIONAL, "all"])
def test_any_artifact_may_be_left_out(tmp_path: Path, left_out: str) -> None:
    inputs = write_build(tmp_path)
    if left_out == "all":
        inputs = Inputs(bench=inputs.bench)
    else:
        inputs = Inputs(**{**vars(inputs), left_out: None})
    page, _ = page_of(inputs, tmp_path / "report" / "index.html")
    assert [ident for ident in page.ids if ident in SECTIONS] == SECTIONS


def test_several_benches_are_compared(tmp_path: Path) -> None:
    inputs = write_build(tmp_path)
    other = write(tmp_path / "bench" / "main" / "other.json", {**bench(0.9), "suite": "other"})
    inputs = dataclasses.replace(inputs, bench=[*inputs.bench, other])
    page, text = page_of(inputs, tmp_path / "report" / "index.html")
    assert "Every bench of this report" in text
    assert len(page.ids) == len(set(page.ids))


def test_the_same_artifacts_give_the_same_page(build: tuple[Inputs, Path]) -> None:
    assert page_of(*build)[1] == page_of(*build)[1]


def test_counts_of_the_data_add_up(build: tuple[Inputs, Path]) -> None:
    material = collect(*build)
    assert [dataset.name for dataset in material.datasets] == list(DATASETS)
    for dataset in material.datasets:
        # Two candidates of each dataset are in an earlier one too.
        assert dataset.rows == 48
        assert dataset.prompts == 37
        assert dataset.candidates == 48 - (dataset.prompt_rejects.total() - 2)
        assert dataset.responses == 40 - dataset.response_rejects.total()
        assert dataset.parts == 2


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    inputs = write_build(tmp_path)
    out = tmp_path / "report" / "index.html"
    with pytest.raises(ContractError, match=r"gone\.json is missing"):
        write_report(dataclasses.replace(inputs, eval=tmp_path / "gone.json"), out)
    assert inputs.train is not None
    inputs.train.write_text('{"step": 1}\n{"step": ', encoding="utf-8")
    with pytest.raises(ContractError, match=r"train.jsonl, line 2, is not JSON"):
        write_report(inputs, out)
    with pytest.raises(ContractError, match="at least one bench"):
        write_report(Inputs(bench=[]), out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("speedup", "pays", "pair", "state"),
    [
        (1.24, True, [1.20, 1.28], "pays"),
        (0.90, False, [0.86, 0.94], "loses"),
        (1.01, True, [0.97, 1.05], "unclear"),
        (1.24, True, None, "pays"),
        (1.24, None, None, "unclear"),
        (None, None, None, "unknown"),
    ],
)
def test_the_verdict_follows_the_interval(
    speedup: float | None, pays: bool | None, pair: list[float] | None, state: str
) -> None:
    content = {**bench(), "speedup": speedup, "speedup_ci95": pair, "verdict": {"pays": pays}}
    assert verdict(content).state == state


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([0, 1], 0, 1), ([1.24, 1.68], 1.2, 1.8), ([5, 5], 4.5, 5.5), ([], 0, 1), ([0, 0], -1, 1)],
)
def test_an_axis_ends_at_round_numbers(values: list[float], low: float, high: float) -> None:
    found = axis(values, str)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert 3 <= len(found.ticks) <= 7
    assert all(found.low <= value <= found.high for value in values)


def test_long_curves_are_thinned_to_means() -> None:
    points = [(float(x), float(x % 2)) for x in range(2000)]
    found = thinned(points)
    assert len(found) == 400
    assert found[0] == pytest.approx((2.0, 0.4))
    assert thinned(points[:3]) == points[:3]
    assert thinned([]) == []


def test_the_summary_fits_a_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "bench.json", {**bench(), "verdict": {"pays": True, "words": "[b]Yes"}})
    stream = io.StringIO()
    report = tmp_path / "report [1]" / "index.html"
    print_summary([path], report, Console(file=stream, width=80))
    text = stream.getvalue()
    lines = text.splitlines()
    assert f"Report: {report}" in lines
    assert all(len(line) <= 80 for line in lines if not line.startswith("Report: "))
    overall = next(line for line in lines if line.startswith("overall"))
    assert overall.split() == [
        "overall",
        "1.47",
        "[1.42,",
        "1.52]",
        "28.1",
        "34.8",
        "1.24×",
        "1.19",
    ]
    assert "[b]Yes" in text
    assert any("—" in line for line in lines if line.startswith("sharegpt"))


def test_the_summary_of_an_unmeasured_bench(tmp_path: Path) -> None:
    stream = io.StringIO()
    print_summary([write(tmp_path / "b.json", {})], tmp_path, Console(file=stream, width=80))
    assert "overall" in stream.getvalue()


def _write_lock(work: Path) -> Path:
    requirements = work / "requirements" / "run.txt"
    requirements.parent.mkdir(exist_ok=True)
    requirements.write_text(
        "# a comment\n-r other.txt\nTorch==2.13.0  # tensors\n"
        'numpy[extra] == 2.4.6 ; python_version > "3.10" \\\n  --hash=sha256:00\n',
        encoding="utf-8",
    )
    inputs = write_build(work)
    out = work / "lock.json"
    assert inputs.target is not None
    write_lock(inputs.target, inputs.selections, inputs.candidates, [requirements], out)
    return out


def test_the_lock_pins_every_input(tmp_path: Path) -> None:
    content = json.loads(_write_lock(tmp_path).read_text(encoding="utf-8"))
    assert content["artifact"] == "lock"
    assert content["contracts"] == VERSIONS
    assert content["requirements"] == {"run.txt": {"numpy": "2.4.6", "torch": "2.13.0"}}
    assert content["target"]["revision"] == "9f" * 16
    assert list(content["datasets"]) == sorted(DATASETS)
    assert all(len(entry["digest"]) == 32 for entry in content["datasets"].values())
    assert str(tmp_path) not in json.dumps(content)


def test_the_lock_is_the_same_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert _write_lock(tmp_path / "a").read_bytes() == _write_lock(tmp_path / "b").read_bytes()


@pytest.mark.parametrize("line", ["torch", "torch>=2", "torch==2.*", "x @ git+ssh://a/b"])
def test_an_unpinned_requirement_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.txt"
    path.write_text(f"numpy==2.4.6\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2, does not pin"):
        read_pins(path)


def test_the_repository_is_pinned() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        assert read_pins(path)


def _run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *map(str, arguments)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "80"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_scripts_run_by_hand(tmp_path: Path) -> None:
    inputs = write_build(tmp_path)
    out = tmp_path / "report" / "index.html"
    arguments: list[str | Path] = ["--out", out]
    for field in dataclasses.fields(inputs):
        found = getattr(inputs, field.name)
        option = f"--{field.name.replace('_', '-')}"
        arguments += [option, *(found if isinstance(found, list) else [found])]
    done = _run("report.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert out.exists()
    done = _run("summary.py", "--bench", inputs.bench[0], "--report", out)
    assert done.returncode == 0
    assert str(out) in done.stdout
    done = _run("report.py", "--bench", tmp_path / "no.json", "--out", out)
    assert done.returncode == 1
    assert "no.json is missing" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_artifact_of_another_kind_is_not_locked(tmp_path: Path) -> None:
    inputs = write_build(tmp_path)
    wrong = write(tmp_path / "wrong.json", sidecar("draft", {}))
    with pytest.raises(ContractError, match="not a sidecar of target"):
        write_lock(wrong, inputs.selections, [], [], tmp_path / "lock.json")
