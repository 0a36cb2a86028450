"""The plan for people: `plan.md`, and the table on the terminal."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aerie.plan.estimate import ESTIMATE, MEASURED, Entry, Plan, Work
from aerie.plan.lengths import Range
from aerie.plan.options import Option, Problem, tb
from aerie.report.text import DASH, decimal, integer, percent, plural, times

_LEFT, _RIGHT = ":--", "--:"


def markdown(plan: Plan, problems: Sequence[Problem]) -> str:
    """The page of a plan."""
    sections = (
        _head(plan, problems),
        _problems(problems),
        _mix(plan),
        _tokens(plan),
        _disk(plan),
        _time(plan),
        _accept(plan),
        _next(plan, problems),
    )
    return "\n\n".join("\n".join(section) for section in map(list, sections) if section) + "\n"


def print_summary(plan: Plan, problems: Sequence[Problem], console: Console) -> None:
    """Print the figures that decide, and where each comes from."""
    table = Table(box=None, pad_edge=False, title=Text(_title(plan)), title_justify="left")
    for name in ("", "expected", "range"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    table.add_column("by", overflow="fold")
    for row in _summary(plan):
        table.add_row(*map(Text, row))
    console.print()
    console.print(table)
    console.print()
    style = "red" if problems else "green"
    console.print(Text(_verdict(plan, problems), style=style))


def sentence(plan: Plan) -> str:
    """The accept length in words: what is predicted, what is needed, what follows."""
    forecast = plan.accept
    if forecast.accept_length is None:
        head = f"No accept length is predicted: {forecast.words}."
    else:
        spread = f", ± {decimal(forecast.spread)}" if forecast.spread is not None else ""
        head = (
            f"{integer(forecast.samples)} samples predict an accept length of "
            f"{decimal(forecast.accept_length)}{spread} ({forecast.words})."
        )
    if forecast.round_cost is None:
        return head + " The break-even is not known: no bench has measured the round cost R."
    head += (
        f" A round costs R = {decimal(forecast.round_cost)} plain steps "
        f"({forecast.round_cost_source}), so the draft pays above an accept length of "
        f"{decimal(forecast.round_cost)}."
    )
    if forecast.speedup is not None:
        head += f" The speed-up would be {times(forecast.speedup)}."
        if forecast.speedup <= 1:
            needed = forecast.samples_to_break_even
            head += (
                f" The line reaches the break-even at about {integer(needed)} samples."
                if needed
                else " The line does not reach the break-even where it can be trusted."
            )
    return head


def _title(plan: Plan) -> str:
    datasets = plural(len(plan.entries), "dataset")
    return f"Plan: {plan.target}, {datasets}, {integer(plan.prompts)} prompts"


def _verdict(plan: Plan, problems: Sequence[Problem]) -> str:
    if problems:
        return f"The plan does not fit: {plural(len(problems), 'problem')}."
    needed, free = plan.storage.needed(plan.storage.codec), plan.storage.free
    words = f"The plan fits: {tb(needed.expected)} are still to be written, {tb(free)} are free."
    if needed.high > free:
        words += f" It could come to {tb(needed.high)}, which would not fit."
    return words


def _summary(plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    tokens, storage = plan.tokens, plan.storage
    yield "samples", integer(plan.samples), "", plan.basis
    yield "tokens", _short(tokens.expected), _span(tokens, _short), plan.basis
    for codec, states in storage.states.items():
        fits = "fits" if storage.fits(codec) else "does not fit"
        note = f"{fits} into {tb(storage.free)}"
        yield f"states, {codec}", tb(states.expected), _span(states, tb), note
    for work in plan.work:
        if work.tokens and work.hours:
            name = f"{work.phase}, 1 host"
            yield name, _hours(work.hours.expected), _span(work.hours, _hours), _by(work)
    total = plan.hours_on_hosts
    name = f"all, {plural(plan.hosts, 'host')}"
    yield name, _hours(total.expected), _span(total, _hours), _gpu_words(plan)
    length, cost = plan.accept.accept_length, plan.accept.round_cost
    yield "accept length", decimal(length), "", "" if length else plan.accept.words
    yield "break-even, R", decimal(cost), "", plan.accept.round_cost_source or "no bench yet"


def _by(work: Work) -> str:
    return f"{work.basis}: {work.source}"


def _gpu_words(plan: Plan) -> str:
    if not plan.gpus_per_host:
        return "on the CPU"
    return f"{integer(plan.gpu_hours.expected)} GPU-hours"


def _head(plan: Plan, problems: Sequence[Problem]) -> Iterator[str]:
    yield f"# {_title(plan)}"
    yield ""
    yield f"**{_verdict(plan, problems)}**"
    yield ""
    yield sentence(plan)
    yield ""
    yield (
        f"Every figure is *{MEASURED}* (in this work folder, or told by `plan`) or an "
        f"*{ESTIMATE}*, and says where it comes from. A range says what it may be at least and at "
        "most. Tokens count prompt and answer."
    )
    yield ""
    yield from _table(("", "expected", "range", "by"), _summary(plan), "lrrl")


def _problems(problems: Sequence[Problem]) -> Iterator[str]:
    if not problems:
        return
    yield "## What does not fit"
    for problem in problems:
        yield ""
        yield f"**{problem.what}**"
        yield ""
        yield f"- saw: {problem.saw}"
        yield f"- expected: {problem.expected}"
        yield ""
        head = ("option", "saves", "GPU-hours saved", "price", "enough alone")
        yield from _table(head, map(_option, problem.options), "lrrll")


def _option(option: Option) -> tuple[str, ...]:
    return (
        option.what,
        tb(option.bytes_saved) if option.bytes_saved else DASH,
        decimal(option.gpu_hours_saved, 1) if option.gpu_hours_saved else DASH,
        option.cost,
        "yes" if option.fits else "no",
    )


def _mix(plan: Plan) -> Iterator[str]:
    yield "## The mix"
    yield ""
    yield (
        f"{integer(plan.prompts)} prompts in {plural(plan.parts, 'part')}, "
        f"{percent(plan.thinking_share, 0)} of them in thinking mode. A take is met with whole "
        "parts, so a little more may be selected. Datasets come in the order of priority for "
        "duplicates."
    )
    yield ""
    head = ("dataset", "from", "category", "licence", "take", "prompts", "thinking", "there are")
    rows = (
        (
            entry.dataset,
            f"{entry.adapter}, `{entry.place}`",
            entry.category,
            entry.licence + (" (gated)" if entry.gated else ""),
            integer(entry.take),
            integer(entry.prompts),
            percent(entry.thinking_share, 0),
            _available(entry),
        )
        for entry in plan.entries
    )
    yield from _table(head, rows, "llllrrrl")


def _available(entry: Entry) -> str:
    at_most = "at most " if entry.available_basis == ESTIMATE else ""
    return f"{at_most}{integer(entry.available)} ({entry.available_source})"


def _tokens(plan: Plan) -> Iterator[str]:
    yield "## Tokens"
    yield ""
    head = ("dataset", "samples", "answers lost", "tokens a sample", "range", "tokens", "by")
    rows = [
        (
            entry.dataset,
            integer(entry.samples),
            percent(entry.lost, 0),
            integer(entry.tokens_per_sample.expected),
            _span(entry.tokens_per_sample, integer),
            _short(entry.tokens.expected),
            f"{entry.basis}: {entry.source}",
        )
        for entry in plan.entries
    ]
    tokens = plan.tokens
    mean = tokens.times(1 / max(plan.samples, 1))
    rows.append(
        ("**all**", integer(plan.samples), "", integer(mean.expected), _span(mean, integer),
         _short(tokens.expected), plan.basis)
    )  # fmt: skip
    yield from _table(head, rows, "lrrrrrl")
    yield ""
    yield (
        "*Answers lost* reach `responses.max_new_tokens` and are dropped. Estimates are for a "
        "target that thinks; without thinking answers are shorter."
    )


def _disk(plan: Plan) -> Iterator[str]:
    storage = plan.storage
    yield "## Disk"
    yield ""
    yield (
        f"{tb(storage.free)} are free where the work folder lies, and {tb(storage.present)} of "
        f"this build are written already. Answers take {tb(storage.responses.expected)} "
        f"({storage.responses_basis}), drafts and their checkpoints {tb(storage.drafts)} "
        f"({storage.drafts_basis})."
        + (f" At most {tb(storage.budget)} of states stay at a time." if storage.budget else "")
    )
    yield ""
    head = ("codec", "bytes a token", "states", "range", "still to be written, in all", "")
    rows = (
        (
            codec + (" **(chosen)**" if codec == storage.codec else ""),
            integer(storage.bytes_per_token[codec]),
            tb(states.expected),
            _span(states, tb),
            tb(storage.needed(codec).expected),
            "fits" if storage.fits(codec) else "does not fit",
        )
        for codec, states in storage.states.items()
    )
    yield from _table(head, rows, "lrrrrl")


def _time(plan: Plan) -> Iterator[str]:
    yield "## Time, jobs and files"
    yield ""
    head = ("phase", "jobs", "done", "files", "time", "range", "GPU-hours", "by")
    rows: list[tuple[str, ...]] = [
        (
            work.phase,
            integer(work.jobs),
            integer(work.done),
            integer(work.files),
            *_hours_cells(work.hours),
            decimal(work.gpu_hours.expected, 1) if work.gpu_hours else DASH,
            _by(work),
        )
        for work in plan.work
    ]
    counts = [sum(getattr(work, name) for work in plan.work) for name in ("jobs", "done", "files")]
    gpu_hours = decimal(plan.gpu_hours.expected, 1)
    rows.append(("**all**", *map(integer, counts), *_hours_cells(plan.hours), gpu_hours, "1 host"))
    if plan.hosts > 1:
        hours = _hours_cells(plan.hours_on_hosts)
        rows.append(("**all**", "", "", "", *hours, "", plural(plan.hosts, "host")))
    yield from _table(head, rows, "lrrrrrrl")
    yield ""
    yield (
        f"{_gpus(plan)} Hosts share jobs and never split one. "
        "Phases follow one another. A phase without a time is not in the sum."
    )


def _gpus(plan: Plan) -> str:
    if not plan.gpus_per_host:
        return "This engine runs on the CPU."
    return f"A host has {plural(plan.gpus_per_host, 'GPU')}."


def _hours_cells(hours: Range | None) -> tuple[str, str]:
    return (_hours(hours.expected), _span(hours, _hours)) if hours else (DASH, "")


def _accept(plan: Plan) -> Iterator[str]:
    yield "## Will it pay?"
    yield ""
    yield sentence(plan)
    if not plan.points:
        return
    yield ""
    rows = (
        (
            integer(point.samples),
            decimal(point.accept_length),
            decimal(point.round_cost),
            times(point.accept_length / point.round_cost if point.round_cost else None),
            point.source,
        )
        for point in plan.points
    )
    yield from _table(("samples", "accept length", "R", "speed-up", "by"), rows, "rrrrl")


def _next(plan: Plan, problems: Sequence[Problem]) -> Iterator[str]:
    steps = []
    if problems:
        steps.append("Choose an option above, change the configuration and run `make plan` again.")
    if plan.basis != MEASURED:
        steps.append(
            "Turn estimates into measurements: set each take to one part (`prompts.part_size`), "
            "run `make all`, then `make plan` with the takes that you want. Nothing is paid for "
            "twice, since a larger take adds parts and changes none."
        )
    if plan.accept.accept_length is None:
        steps.append(
            "Two drafts on different amounts of data give a slope: add what you know to "
            "`plan.history`, or build a tenth of the data first."
        )
    if not problems:
        steps.append("`make dry-run` lists the jobs; `make all` runs them.")
    yield "## Next"
    yield ""
    yield from (f"{number}. {step}" for number, step in enumerate(steps, 1))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], sides: str) -> Iterator[str]:
    yield _row(head)
    yield _row([_LEFT if side == "l" else _RIGHT for side in sides])
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _span(values: Range, words: Callable[[float], str]) -> str:
    low, high = words(values.low), words(values.high)
    return "" if low == high else f"{low} to {high}"


def _short(count: float) -> str:
    """`1,604`, `12.3 K`, `160.4 M`, `1.2 G`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e4)):
        if count >= size:
            return f"{count / (size if size != 1e4 else 1e3):,.1f} {unit}"
    return integer(count)


def _hours(hours: float) -> str:
    """`19.0 h`, `4.2 min`, `38 s`."""
    if hours >= 1:
        return f"{hours:,.1f} h"
    return f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.0f} s"
