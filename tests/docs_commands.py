"""The commands that README, CONTRIBUTING and docs/ give, as a reader would copy them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from aerie.config import ROOT

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
# What a command begins with, after variables and `sudo`.
PROGRAMS = frozenset({
    "aerie", "apptainer", "apt-get", "docker", "export", "git", "hf", "make", "mkdir", "pip",
    "python", "sacctmgr", "scancel", "scontrol", "sinfo", "snakemake", "squeue", "torchrun",
    ".venv/bin/pip",
})  # fmt: skip
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
_INLINE = re.compile(r"`([^`]+)`")
_ASSIGNMENT = re.compile(r"[A-Za-z_]+=")


@dataclass(frozen=True)
class Command:
    """One command, in one line and without comments, and the page that gives it."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """Words without leading assignments and `sudo`."""
        words = shlex.split(self.text)
        while _ASSIGNMENT.match(words[0]) or words[0] == "sudo":
            words = words[1:]
        return words


def commands() -> list[Command]:
    """Every command once, in the order of the pages."""
    found: dict[str, Command] = {}
    for page in PAGES:
        for text in _of_page(page.read_text(encoding="utf-8")):
            found.setdefault(text, Command(str(page.relative_to(ROOT)), text))
    return list(found.values())


def _of_page(text: str) -> Iterator[str]:
    for language, block in _FENCED.findall(text):
        if language in {"", "sh", "bash", "console"}:
            yield from _of_block(block)
    text = _FENCED.sub("", text)
    for block in _INDENTED.findall(text):
        yield from _of_block(block)
    for span in _INLINE.findall(_INDENTED.sub("", text)):
        line = " ".join(span.split())
        # A word alone is a name: `make`, `snakemake`.
        if " " in line and _is_command(line):
            yield line


def _of_block(block: str) -> Iterator[str]:
    """Commands of a block. Of a transcript they have a prompt, and the rest is what they print."""
    lines = [line.strip() for line in re.sub(r"\\\n\s*", "", block).splitlines() if line.strip()]
    transcript = any(line.startswith("$ ") for line in lines)
    if not transcript and not _is_command(lines[0]):
        return
    for line in lines:
        if not transcript or line.startswith("$ "):
            yield re.split(r"\s+#\s", line.removeprefix("$ "))[0]


def _is_command(line: str) -> bool:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # prose with an apostrophe
        return False
    while words and (_ASSIGNMENT.match(words[0]) or words[0] == "sudo"):
        words = words[1:]
    return bool(words) and words[0] in PROGRAMS
