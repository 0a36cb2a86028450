"""One definition, two runtimes: a Dockerfile that Apptainer builds from too.

Only what both can do is allowed: ARG, FROM, COPY, RUN and ENV, with COPY before RUN in a stage,
since Apptainer copies first. (Tried: spython 0.3.14 makes one section of all stages.)
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aerie.errors import ConfigError

_BASE = "${BASE}"


@dataclass
class Stage:
    """What follows a FROM. `copies`: stage or None for the context, sources, destination."""

    name: str | None
    copies: list[tuple[str | None, list[str], str]] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)


def read_definition(path: Path) -> list[Stage]:
    """The stages of a definition.

    Raises:
        ConfigError: it cannot be read, or says what one of the runtimes cannot do.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", saw=error) from error
    stages: list[Stage] = []
    for number, word, rest in _instructions(text):
        try:
            _add(stages, word, rest)
        except ValueError as error:
            raise ConfigError(
                f"{path}, line {number}, is not for both runtimes",
                saw=f"{word} {rest}",
                expected=str(error),
            ) from None
    return stages


def apptainer(stages: list[Stage], base: str, context: Path) -> str:
    """The definition for Apptainer; `base` is an image reference or the folder of a root."""
    bootstrap = "localimage" if Path(base).is_dir() else "docker"
    blocks = []
    for number, stage in enumerate(stages):
        lines = [f"Bootstrap: {bootstrap}", f"From: {base}"]
        lines += [f"Stage: {stage.name or f'stage{number}'}"] if len(stages) > 1 else []
        for source, files, destination in stage.copies:
            lines += ["", f"%files from {source}" if source else "%files"]
            lines += [f"    {file if source else context / file} {destination}" for file in files]
        lines += ["", "%post", "    set -eu"]
        lines += [f"    {'export ' if kind == 'ENV' else ''}{text}" for kind, text in stage.steps]
        variables = [text for kind, text in stage.steps if kind == "ENV"]
        if variables:
            lines += ["", "%environment", *(f"    export {text}" for text in variables)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, instruction and what follows; comments and continued lines are taken care of."""
    joined = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        word, _, rest = joined.partition(" ")
        yield number, word.upper(), rest.strip()
        joined = ""


def _add(stages: list[Stage], word: str, rest: str) -> None:
    """Add one instruction; a ValueError says what is expected instead."""
    if word == "ARG" and not stages:
        if rest != "BASE":
            raise ValueError("one argument alone, BASE: what a build is given is in its context")
    elif word == "FROM":
        found = re.fullmatch(r"(\S+)(?:\s+[Aa][Ss]\s+(\w+))?", rest)
        if not found or found[1] != _BASE:
            raise ValueError(f"FROM {_BASE}: images.lock.yaml says what it is, with its digest")
        stages.append(Stage(found[2]))
    elif not stages:
        raise ValueError("FROM first")
    elif word == "COPY":
        _copy(stages, rest)
    elif word == "RUN" and not rest.startswith(("-", "[")):
        stages[-1].steps.append(("RUN", rest))
    elif word == "ENV" and re.fullmatch(r"\w+=\S+", rest):
        stages[-1].steps.append(("ENV", rest))
    else:
        raise ValueError("FROM, COPY, RUN COMMAND or ENV NAME=VALUE")


def _copy(stages: list[Stage], rest: str) -> None:
    stage = stages[-1]
    if any(kind == "RUN" for kind, _ in stage.steps):
        raise ValueError("COPY before RUN: Apptainer copies first")
    words = shlex.split(rest)
    source = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
    if source is not None and source not in [earlier.name for earlier in stages[:-1]]:
        raise ValueError("--from= of an earlier stage")
    if len(words) < 2 or any(word.startswith("-") for word in words):
        raise ValueError("COPY [--from=STAGE] SOURCE... DESTINATION")
    stage.copies.append((source, words[:-1], words[-1]))
