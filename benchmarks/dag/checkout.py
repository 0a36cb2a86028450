"""A checkout whose build is far along, or whole, for Snakemake to look at: real names, small files.

Only what Snakemake reads is real: names, times, the sidecars that it compares by content, the
selections that it reads parts from, and its own records of every job, which `--touch` makes.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from aerie.config import Config, load
from aerie.contracts.prompts import part_name
from aerie.contracts.sidecar import write_sidecar
from aerie.files import digest_bytes, write_json
from aerie.prompts.select import HELD_OUT

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "Snakefile", "rules", "scripts", "aerie", "schemas", "profiles", "requirements", "containers",
    "demo/suites",
)  # fmt: skip
WORK = Path("results/dag")


def make_checkout(folder: Path, configuration: Path, scale: int) -> Config:
    """A copy of this checkout in `folder` with `configuration`, every take `scale` times as large.

    Returns the configuration as it then is.
    """
    for name in COPIED:
        source, copy = ROOT / name, folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy)
    text = configuration.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^work:.*$", f"work: {WORK}", text)
    text = re.sub(r"(?m)^(\s+take:) (\d+)", lambda m: f"{m[1]} {scale * int(m[2])}", text)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    return load(folder / "config.yaml")


def select(folder: Path, config: Config) -> int:
    """Leave what a build leaves once all prompts are selected; returns the number of parts."""
    work = folder / WORK
    _sidecar(work / "target/target.json", "target", {})
    parts = 0
    for name, dataset in config.datasets.items():
        if dataset.hub:
            _sidecar(work / f"sources/{name}/source.json", "source", {})
        for file in ("candidates.parquet", "candidates.safetensors", "rejects.parquet"):
            _file(work / "candidates" / name / file)
        _sidecar(work / f"candidates/{name}/candidates.json", "candidates", {})
        selection = work / "prompts" / name
        parts += _select(selection, name, dataset.take, config.prompts.part_size)
        if config.bench.held_out:
            _file(selection / HELD_OUT)
    call(folder, "--touch", "--forceall", "--until", "prompts")
    return parts


def finish(folder: Path, config: Config) -> None:
    """Leave what a build leaves that has ended. `select` goes before."""
    # Snakemake knows some files only when the checkpoints before them have, to its knowledge, run.
    while missing := _missing(folder):
        for path in missing:
            if path.suffix == ".json":
                _sidecar(path, "states", {"rows": config.prompts.part_size})
            else:
                _file(path)
        call(folder, "--touch", "--forceall")


def snakemake(folder: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs Snakemake in `folder` on two cores, and its environment."""
    options = ["--workflow-profile", "profiles/default", "--cores", "2", "--nolock"]
    path = f"{folder}{os.pathsep}{folder / 'rules'}"
    command = [sys.executable, "-m", "snakemake", *options, *arguments]
    return command, {**os.environ, "PYTHONPATH": path}


def call(folder: Path, *arguments: str) -> str:
    """What Snakemake prints on its standard output."""
    command, environment = snakemake(folder, *arguments)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Snakemake failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _missing(folder: Path) -> list[Path]:
    """Outputs that are not there, of the jobs that are known by now."""
    lines = call(folder, "--summary").splitlines()
    header = lines[0].split("\t")
    rows = [dict(zip(header, line.split("\t"), strict=True)) for line in lines[1:]]
    return [folder / row["output_file"] for row in rows if row["status"] == "missing"]


def _select(folder: Path, name: str, take: int, part_size: int) -> int:
    parts = []
    for start in range(0, take, part_size):
        part = part_name(start // part_size)
        rows = min(part_size, take - start)
        _file(folder / f"{part}.parquet")
        _sidecar(folder / f"{part}.json", "prompts", {"rows": rows, "dropped": 0})
        parts.append({"name": part, "rows": rows, "dropped": 0})
    write_json(folder / "selection.json", {"dataset": name, "take": take, "parts": parts})
    write_json(folder / "licence.json", {"dataset": name})
    return len(parts)


def _sidecar(path: Path, artifact: str, counts: dict[str, int]) -> None:
    """A sidecar of the usual size, about one file that differs from all others."""
    file = _file(path.with_suffix(".data"))
    write_sidecar(path, artifact, [file], counts, {"name": str(path.parent.name)})


def _file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(digest_bytes(str(path).encode()), encoding="utf-8")
    return path
