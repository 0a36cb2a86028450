"""A build on a cluster, simulated: how long it takes on how many hosts, and what bounds it.

Jobs and tokens are those of `make plan`; rates are measured where the work folder or `plan.rates`
has them and the team's estimates elsewhere, and the result says which. SLURM starts jobs in the
order in which they become ready, each on a whole host. Rules without a GPU take none.

    python benchmarks/dag/schedule.py --hosts 1 4 16 --load-minutes 15
"""

import argparse
import heapq
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from aerie.config import Config, load
from aerie.plan.estimate import Entry, estimate
from aerie.plan.facts import read_facts
from aerie.plan.rates import PHASES, Phase, rate

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Job:
    """`seconds` on a host of its own, or, where `gpu` is false, on the host of the clients."""

    name: str
    seconds: float
    after: tuple[str, ...] = ()
    gpu: bool = False


@dataclass(frozen=True)
class Schedule:
    """Hours. `bound` is the longest chain of jobs: no number of hosts is faster."""

    hosts: int
    hours: float
    bound: float
    busy: float
    phases: dict[str, float]


def simulate(jobs: list[Job], hosts: int) -> Schedule:
    """Run `jobs`, which come after those that they wait for, on `hosts` hosts with GPUs."""
    followers: dict[str, list[Job]] = defaultdict(list)
    waiting = {job.name: len(job.after) for job in jobs}
    order = {job.name: number for number, job in enumerate(jobs)}
    for job in jobs:
        for name in job.after:
            followers[name].append(job)
    ready = [(0.0, order[job.name], job) for job in jobs if not job.after]
    queue: list[tuple[float, int, Job]] = []
    running: list[tuple[float, int, Job]] = []
    now, free = 0.0, hosts
    ends: dict[str, float] = {}
    while ready or queue or running:
        for entry in ready:
            heapq.heappush(queue, entry)
        ready, held = [], []
        while queue:
            entry = heapq.heappop(queue)
            job = entry[2]
            if job.gpu and not free:
                held.append(entry)
                continue
            free -= job.gpu
            heapq.heappush(running, (now + job.seconds, order[job.name], job))
        queue = held
        now, _, done = heapq.heappop(running)
        free += done.gpu
        ends[done.name] = now
        for follower in followers[done.name]:
            waiting[follower.name] -= 1
            if not waiting[follower.name]:
                ready.append((now, order[follower.name], follower))
    work = sum(job.seconds for job in jobs if job.gpu)
    phases: dict[str, float] = {}
    for name, end in ends.items():
        phase = name.split()[0]
        phases[phase] = max(phases.get(phase, 0.0), end / 3600)
    return Schedule(hosts, now / 3600, longest_chain(jobs) / 3600, work / (now * hosts), phases)


def longest_chain(jobs: list[Job]) -> float:
    """Seconds of the longest chain of jobs that wait for one another."""
    ends: dict[str, float] = {}
    for job in jobs:
        ends[job.name] = job.seconds + max((ends[name] for name in job.after), default=0.0)
    return max(ends.values(), default=0.0)


def jobs_of(config: Config, load_s: float, start_s: float) -> tuple[list[Job], dict[str, str]]:
    """The jobs of a build from the first response on, and where each rate is from.

    Every job that has a server loads the target for `load_s`; every job takes `start_s` to start.
    """
    facts = read_facts(config)
    plan = estimate(config, facts)
    rates = {phase: rate(phase, facts.rates, config.plan) for phase in PHASES}

    def seconds(phase: Phase, tokens: float) -> float:
        return start_s + tokens / rates[phase].tokens_per_s.expected

    def parts(entry: Entry, phase: str) -> list[str]:
        return [f"{phase} {entry.dataset} {number}" for number in range(entry.parts)]

    jobs = []
    for entry in plan.entries:
        responses, states = parts(entry, "responses"), parts(entry, "states")
        asked = load_s + seconds("responses", entry.generated.expected / max(entry.parts, 1))
        captured = load_s + seconds("states", entry.tokens.expected / max(entry.parts, 1))
        jobs += [Job(name, asked, gpu=True) for name in responses]
        jobs += [
            Job(name, captured, (before,), gpu=True)
            for name, before in zip(states, responses, strict=True)
        ]
        jobs.append(Job(f"counts {entry.dataset}", start_s, tuple(responses)))
    jobs.append(Job("map", start_s, tuple(f"counts {entry.dataset}" for entry in plan.entries)))
    everything = tuple(name for entry in plan.entries for name in parts(entry, "states"))
    jobs.append(Job("manifest", start_s, everything))
    for run, draft in config.drafts.items():
        trained = seconds("draft", plan.tokens.expected * draft.epochs)
        jobs.append(Job(f"draft {run}", trained, ("map", "manifest"), gpu=True))
        jobs += [
            Job(f"bench {run} {suite}", load_s + start_s, (f"draft {run}",), gpu=True)
            for suite in config.bench.names
        ]
    return jobs, {phase: f"{found.basis}: {found.source}" for phase, found in rates.items()}


def scaled(config: Config, factor: int) -> Config:
    """The same mix with takes `factor` times as large."""
    datasets = {
        name: entry.model_copy(update={"take": factor * entry.take})
        for name, entry in config.datasets.items()
    }
    return config.model_copy(update={"datasets": datasets})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configuration", type=Path, default=ROOT / "config.yaml")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--scale", type=int, default=1, help="factor of all takes")
    parser.add_argument("--load-minutes", type=float, default=15, help="to load the target, a job")
    parser.add_argument("--start-seconds", type=float, default=7, help="SLURM and Snakemake, a job")
    options = parser.parse_args()
    found, sources = jobs_of(
        scaled(load(options.configuration), options.scale),
        options.load_minutes * 60,
        options.start_seconds,
    )
    for phase, source in sources.items():
        print(f"{phase}: {source}")
    print("hosts   hours  busy  end of responses, states, draft (hours)")
    for hosts in options.hosts:
        schedule = simulate(found, hosts)
        ends = ", ".join(f"{schedule.phases[phase]:.1f}" for phase in PHASES)
        print(f"{hosts:5} {schedule.hours:7.1f} {schedule.busy:5.0%}  {ends}")
    print(f"longest chain: {longest_chain(found) / 3600:.1f} hours")
