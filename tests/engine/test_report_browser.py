"""The report as a person sees it: rendered by headless Chromium, phone and desk, light and dark."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from aerie.report.page import write_report
from tests.engine.browser import BINARY, Browser
from tests.unit.report_fixtures import HOSTILE, bench, write, write_build

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="chromium is not installed"),
]

# Text that pokes out of the window, and pairs of texts of one chart that lie on each other. Rows
# hidden by the style sheet have no box.
OUTSIDE = """[...document.querySelectorAll('.chart text, h1, h2, dd, figcaption')]
  .filter(node => { const box = node.getBoundingClientRect();
    return box.width && (box.left < -0.5 || box.right > innerWidth + 0.5); })
  .map(node => node.textContent)"""
OVERLAPS = """[...document.querySelectorAll('.chart')].flatMap(chart => {
  const boxes = [...chart.querySelectorAll('text')]
    .map(node => [node.getBoundingClientRect(), node])
    .filter(([box]) => box.width);
  return boxes.flatMap(([a, x], i) => boxes.slice(i + 1)
    .filter(([b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
    .map(([, y]) => `${x.textContent} | ${y.textContent}`)); })"""
CONTRAST = """(() => {
  const channel = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const ratio = node => { const style = getComputedStyle(node);
    const own = light(node.ownerSVGElement ? style.fill : style.color);
    return (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05); };
  return Math.min(...[...document.querySelectorAll('p, dt, dd, th, td, a, .chart text, summary')]
    .map(ratio)); })()"""


# What a key reaches, in the order of the page. What a closed fold holds is not shown.
REACHABLE = """[...document.querySelectorAll('a[href], summary, [tabindex]')]
  .filter(node => node.checkVisibility())"""
# Which of them has the focus, and whether it can be seen there.
FOCUS = """(() => {
  const node = document.activeElement, style = getComputedStyle(node);
  const box = node.getBoundingClientRect();
  const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2
    && box.width > 0 && box.bottom > 0 && box.top < innerHeight;
  return [window.reachable.indexOf(node), seen]; })()"""
# Roles that a screen reader announces by their name.
NAMED = {"image", "link", "table", "region", "navigation", "heading", "DisclosureTriangle"}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("build")
    write_report(write_build(work), work / "report" / "index.html")
    return work / "report" / "index.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_page_renders(
    chromium: Browser, page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    chromium.open(page, width, 844 if width < 600 else 900, dark)
    chromium.screenshot(tmp_path / f"report-{width}-{'dark' if dark else 'light'}.png")
    assert chromium.complaints() == []
    assert chromium.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.evaluate(OUTSIDE) == []
    assert chromium.evaluate(OVERLAPS) == []
    assert chromium.evaluate(CONTRAST) >= 4.5
    background = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(19, 21, 23)" if dark else "rgb(251, 250, 247)")


@pytest.mark.parametrize("width", [390, 1280])
def test_every_table_opens_without_overflow(chromium: Browser, page: Path, width: int) -> None:
    chromium.open(page, width, 844, dark=False)
    chromium.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true })")
    assert chromium.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_it_loads_within_a_second(chromium: Browser, page: Path) -> None:
    chromium.open(page, 1280, 900, dark=False)
    taken = "performance.getEntriesByType('navigation')[0].loadEventEnd"
    assert 0 < chromium.evaluate(taken) < 1000


def test_the_navigation_leads_to_every_section(chromium: Browser, page: Path) -> None:
    chromium.open(page, 390, 844, dark=False)
    links = "[...document.querySelectorAll('nav a')]"
    assert chromium.evaluate(f"{links}.length") == 17
    assert chromium.evaluate(f"{links}.every(link => document.querySelector(link.hash))")
    # The bar stays in sight, and its links can be scrolled to on a phone.
    chromium.evaluate("scrollTo({top: 3000, behavior: 'instant'})")
    assert chromium.evaluate("document.querySelector('nav').getBoundingClientRect().top") == 0
    assert chromium.evaluate(
        "getComputedStyle(document.querySelector('nav ul')).overflowX === 'auto'"
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_keys_reach_everything_in_order_and_the_focus_is_seen(
    chromium: Browser, page: Path, width: int
) -> None:
    chromium.open(page, width, 844, dark=False)
    # Smooth scrolling would still be on its way when the focus is looked for.
    chromium.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    count = chromium.evaluate(f"(window.reachable = {REACHABLE}).length")
    assert count > 40
    found = []
    for _ in range(count):
        chromium.press("Tab")
        found.append(chromium.evaluate(FOCUS))
    assert found == [[place, True] for place in range(count)]
    # A fold opens by the keyboard.
    chromium.evaluate("document.querySelector('summary').focus()")
    chromium.press("Enter")
    assert chromium.evaluate("document.querySelector('summary').parentElement.open")


def test_a_screen_reader_has_a_name_for_everything(chromium: Browser, page: Path) -> None:
    chromium.open(page, 1280, 844, dark=False)
    chromium.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true })")
    nodes = [
        (node["role"]["value"], node.get("name", {}).get("value", "").strip())
        for node in chromium.call("Accessibility.getFullAXTree")["nodes"]
        if not node["ignored"]
    ]
    assert NAMED - {role for role, _ in nodes} == set()
    assert [role for role, name in nodes if role in NAMED and not name] == []
    assert chromium.evaluate("document.documentElement.lang") == "en-GB"
    # Headings open no level without the one above it.
    levels = chromium.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map(node => +node.localName[1])"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    # Cells of a table have a header, of the column and of the row.
    assert chromium.evaluate(
        "[...document.querySelectorAll('table')].every(table => table.querySelector('caption')"
        " && [...table.querySelectorAll('th')].every(cell => cell.scope))"
    )


def test_it_prints(chromium: Browser, page: Path, tmp_path: Path) -> None:
    chromium.open(page, 1280, 900, dark=True)
    printed = chromium.print_to(tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000


def test_hostile_text_runs_nothing(chromium: Browser, tmp_path: Path) -> None:
    name = "<img src=x onerror=\"document.title='owned'\">"
    inputs = write_build(tmp_path, names=["plain"], hostile=True)
    content = bench(names=[name, HOSTILE, "a_very_long_name_of_a_dataset_that_never_ends_at_all"])
    write(inputs.bench[0], content)
    out = tmp_path / "report" / "index.html"
    write_report(inputs, out)
    chromium.open(out, 390, 844, dark=False)
    assert chromium.complaints() == []
    assert chromium.evaluate("document.title !== 'owned' && !document.querySelector('script, img')")
    assert chromium.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.evaluate(OVERLAPS) == []


def test_numbers_that_are_missing_render(chromium: Browser, tmp_path: Path) -> None:
    inputs = write_build(tmp_path)
    write(inputs.bench[0], bench(None))
    out = tmp_path / "report" / "index.html"
    write_report(inputs, out)
    chromium.open(out, 390, 844, dark=True)
    chromium.screenshot(tmp_path / "report-unmeasured.png")
    assert chromium.complaints() == []
    assert chromium.evaluate("document.documentElement.scrollWidth <= innerWidth")
