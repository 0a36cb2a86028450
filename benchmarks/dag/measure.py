"""How long Snakemake thinks about a build of 100K prompts, and of ten times as many.

The selection is there, so that all jobs are known. Measured are a dry run before the first response
and a run when all is done, each in wall seconds and CPU seconds (median) and peak memory.

    python benchmarks/dag/measure.py --folder /tmp/aerie-dag --out benchmarks/results/dag.json
"""

import argparse
import os
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

from aerie.files import write_json
from benchmarks.dag.checkout import ROOT, finish, make_checkout, select, snakemake

# Seconds that the project allows, on two cores: a dry run and a run that has nothing to do.
LIMITS = {1: (6, 10), 10: (30, 30)}


def measure(folder: Path, configuration: Path, scale: int, repeats: int = 3) -> dict[str, Any]:
    """Figures of one size. `folder` is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = make_checkout(folder, configuration, scale)
    parts = select(folder, config)
    prompts = sum(dataset.take for dataset in config.datasets.values())
    planned, texts = timed(folder, repeats, "--dry-run")
    jobs = int(texts[-1].split("\ntotal")[1].split()[0])
    finish(folder, config)
    idle, texts = timed(folder, repeats)
    if "Nothing to be done" not in texts[-1]:
        raise RuntimeError(f"the build was not complete:\n{texts[-1]}")
    return {"prompts": prompts, "parts": parts, "jobs": jobs, "dry_run": planned, "no_op": idle}


def timed(folder: Path, repeats: int, *arguments: str) -> tuple[dict[str, float], list[str]]:
    """Medians over `repeats` calls of Snakemake in `folder`, and what each printed."""
    walls, cpus, memory, texts = [], [], [], []
    command, environment = snakemake(folder, *arguments)
    output = folder / "output.txt"
    for _ in range(repeats):
        with output.open("wb") as stream:
            start = time.monotonic()
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=stream, stderr=stream
            )
            # Not subprocess's own wait, which does not tell what the process used.
            _, status, used = os.wait4(process.pid, 0)
            walls.append(time.monotonic() - start)
        process.returncode = os.waitstatus_to_exitcode(status)
        texts.append(output.read_text(encoding="utf-8"))
        if process.returncode:
            raise RuntimeError(f"Snakemake failed:\n{texts[-1]}")
        cpus.append(used.ru_utime + used.ru_stime)
        memory.append(used.ru_maxrss / 1024)
    figures = {"wall_s": walls, "cpu_s": cpus, "peak_mib": memory}
    return {name: round(median(values), 2) for name, values in figures.items()}, texts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="scratch, made anew")
    parser.add_argument("--configuration", type=Path, default=ROOT / "config.yaml")
    parser.add_argument("--out", type=Path, required=True, help="JSON")
    options = parser.parse_args()
    found = {
        f"{scale}x": measure(options.folder / str(scale), options.configuration, scale)
        for scale in LIMITS
    }
    write_json(options.out, {"cores": os.cpu_count(), "sizes": found})
    print(options.out.read_text(encoding="utf-8"))
