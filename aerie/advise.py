"""`aerie advise`: how to serve at a given concurrency, and what to expect of it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.bench.breakeven import Cell, Choice, best, costs_of, lengths_of
from aerie.engines.sglang.probe import Probe
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.wanted import Wanted
from aerie.errors import DataError
from aerie.target import Target


@dataclass(frozen=True)
class Advice:
    """What to do, why, and the command that does it."""

    choice: Choice
    words: str
    command: str


def choose(
    benches: Mapping[str, Mapping[str, Any]],
    concurrency: int,
    domain: str | None = None,
    tables: Sequence[Cell] = (),
) -> Choice:
    """The best k at `concurrency` for all prompts, or for one domain.

    The first of `benches` gives the accept length, all of them the round costs.

    Raises:
        DataError: there is no such domain, or no round cost at that concurrency.
    """
    if concurrency < 1:
        raise DataError("--concurrency must be 1 or more", saw=concurrency)
    first = next(iter(benches.values()))
    if domain is not None and domain not in first["domains"]:
        raise DataError(
            f"the bench has no domain {domain}",
            saw=", ".join(first["domains"]),
            remedy="leave `--domain` out for all of them together",
        )
    return best(lengths_of(first, domain), costs_of(benches, tables), concurrency)


def advise(
    choice: Choice, engine: str, target: Target, draft: Path, settings: SglangSettings, version: str
) -> Advice:
    """The command of a server of SGLang `version` for a choice, and its reason in words."""
    settings = settings.model_copy(update={"concurrency": choice.concurrency})
    wanted = (
        Wanted.with_draft(target, draft, choice.k, Probe(draft))
        if choice.k
        else Wanted.plain(target)
    )
    command = shlex.join(wanted.command(settings, version, settings.port or 30000))
    if choice.k:
        words = (
            f"At concurrency {choice.concurrency}, draft with k = {choice.k}: a round gains "
            f"{choice.accept_length:.2f} tokens and costs {choice.round_cost:.2f} plain steps, so "
            f"decoding is {choice.speedup:.2f} times as fast as without the draft."
        )
    else:
        words = (
            f"At concurrency {choice.concurrency}, serve without the draft: no chain that was "
            "measured gains more tokens than it costs plain steps."
        )
    if engine != "sglang":
        words += (
            f" The round cost was measured by the engine `{engine}`; on SGLang it is another one."
        )
    return Advice(choice, words, command)
