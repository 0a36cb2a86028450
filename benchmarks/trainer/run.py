"""Aerie's training step, SpecForge's and the floor, side by side in one run on one GPU.

    python benchmarks/trainer/run.py --specforge CHECKOUT --out benchmarks/results/h200-trainer.json

CHECKOUT: `git clone https://github.com/sgl-project/SpecForge && git checkout a6b6b023`. Needs CUDA,
torch with Triton, transformers, safetensors, xxhash and 40 GB of disk and memory; about six
minutes on an H200. Each side runs in a process of its own; what has ended is in the results even if
a later part fails. The checks of check.py come first, and nothing is timed if one fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import xxhash
from floor import adamw_ms, floors

HERE = Path(__file__).resolve().parent
TOKENS = (2048, 4096, 8192)
LIMIT_S = 300


def run(script: str, out: Path, *arguments: str, path: str = "") -> list[dict[str, Any]]:
    """Run one side; returns its lines, those of a run that failed included."""
    environment = os.environ | ({"PYTHONPATH": path} if path else {})
    command = [sys.executable, str(HERE / script), *arguments, "--out", str(out)]
    try:
        subprocess.run(command, env=environment, check=True, timeout=LIMIT_S)
    except subprocess.SubprocessError as error:
        print(error, file=sys.stderr)
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return [json.loads(line) for line in lines]


def table(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]], floor: dict[int, Any], commit: str
) -> list[dict[str, Any]]:
    """The results of all sides, one entry for each token budget and data source."""
    rows = []
    for mine in ours:
        key = (mine["tokens"], mine["data"])
        peer = next((each for each in theirs if (each["tokens"], each["data"]) == key), None)
        rows.append(
            {
                "tokens_per_step": mine["tokens"],
                "data": mine["data"],
                "aerie_tokens_per_s": mine["tokens_per_s"],
                "specforge_tokens_per_s": peer and peer["tokens_per_s"],
                "ratio": peer and round(mine["tokens_per_s"] / peer["tokens_per_s"], 3),
                "aerie_peak_gib": mine["peak_gib"],
                "specforge_peak_gib": peer and peer["peak_gib"],
                "fp8": mine["fp8"],
                "floor": floor.get(mine["tokens"]),
                "aerie": mine,
                "specforge": peer,
                "gpu": torch.cuda.get_device_name(0),
                "torch": torch.__version__,
                "aerie_commit": commit,
                "aerie_sources": sources(),
                "specforge_commit": "a6b6b023",
                "command": "python benchmarks/trainer/run.py --specforge CHECKOUT --out OUT",
            }
        )
    return rows


def sources() -> str:
    """Digest of the trainer's modules."""
    state = xxhash.xxh3_128()
    for file in sorted((HERE.parents[1] / "aerie/train").rglob("*.py")):
        state.update(file.read_bytes())
    return state.hexdigest()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--specforge", type=Path, required=True, help="its checkout")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--commit", default="", help="of Aerie, where there is no git")
    options = arguments.parse_args()
    subprocess.run([sys.executable, str(HERE / "check.py")], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ours = run("ours.py", folder / "ours", "--tokens", *map(str, TOKENS))
        write(options.out, table(ours, [], {}, options.commit))
        theirs: list[dict[str, Any]] = []
        for tokens in TOKENS:
            out, path = folder / f"theirs{tokens}", str(options.specforge.resolve())
            theirs += run("peer.py", out, "--tokens", str(tokens), path=path)
            write(options.out, table(ours, theirs, {}, options.commit))
    optimizer = adamw_ms()
    torch.cuda.empty_cache()
    floor = {tokens: floors(tokens, optimizer) for tokens in TOKENS}
    write(options.out, table(ours, theirs, floor, options.commit))


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write the results and print the figures that matter."""
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(
            row["tokens_per_step"], row["data"], "fp8" if row["fp8"] else "bf16",
            "aerie", row["aerie_tokens_per_s"], "specforge", row["specforge_tokens_per_s"],
            "ratio", row["ratio"], "floor", row["floor"],
        )  # fmt: skip


if __name__ == "__main__":
    main()
