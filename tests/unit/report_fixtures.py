"""Artifacts of a made-up build, in the formats that the phases write, for tests of the report."""

import json
import math
import random
from pathlib import Path
from typing import Any

from aerie.contracts import VERSIONS
from aerie.report.collect import Inputs
from aerie.scaling.mix import effects
from aerie.scaling.result import summarise

DATASETS = {
    "swe_agent": ("nebius/SWE-agent-trajectories", "CC-BY-4.0"),
    "deepswe": ("SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K", "Apache-2.0"),
    "mixture_of_thoughts": ("open-r1/Mixture-of-Thoughts", "Apache-2.0"),
    "openthoughts": ("open-thoughts/OpenThoughts-114k", "Apache-2.0"),
    "opencode_instruct": ("nvidia/OpenCodeInstruct", "CC-BY-4.0"),
    "magicoder": ("ise-uiuc/Magicoder-Evol-Instruct-110K", "Apache-2.0"),
    "sharegpt": ("anon8231489123/ShareGPT_Vicuna_unfiltered", "Apache-2.0"),
    "ultrachat": ("HuggingFaceH4/ultrachat_200k", "MIT"),
    "perfectblend": ("mlabonne/open-perfectblend", "Apache-2.0"),
    "infinity_instruct": ("BAAI/Infinity-Instruct", "CC-BY-SA-4.0"),
}
HOSTILE = "<script>alert('x')</script>\"'&{{ 7*7 }}"


def bench(speedup: float | None = 1.24, names: list[str] | None = None) -> dict[str, Any]:
    """A bench JSON; with `speedup` None, one of an engine whose times were not taken."""
    rng = random.Random(1)
    domains = {}
    for name in names or list(DATASETS):
        length = round(rng.uniform(1.24, 1.68), 3)
        timed = speedup is not None and rng.random() < 0.8
        plain, gain = rng.uniform(26, 30), length / 1.19
        domains[name] = {
            "accept_length": length,
            "accept_length_ci95": [round(length - 0.11, 3), round(length + 0.12, 3)],
            "rounds": rng.randint(300, 700),
            "prompts": 12,
            "plain_tokens_per_s": round(plain, 2) if timed else None,
            "draft_tokens_per_s": round(plain * gain, 2) if timed else None,
            "speedup": round(gain, 3) if timed else None,
            "joint": [round(0.7 * (length - 1), 3), round(0.25 * (length - 1), 3), 0.01],
            "answers": 12,
        }
    group = {
        "accept_length": 1.47, "accept_length_ci95": [1.42, 1.52], "joint": [0.35, 0.1, 0.02],
        "rounds": 5200, "prompts": 120, "answers": 120,
    }  # fmt: skip
    kept = (1840, 610, 190)
    reached = (5200, 1840, 610)
    timed_overall = speedup is not None
    return {
        "artifact": "bench",
        "contract": VERSIONS["bench"],
        "run": "main",
        "suite": "heldout",
        "engine": "transformers",
        "k": 3,
        "accept_length": 1.47,
        "accept_length_ci95": [1.42, 1.52],
        "accept_length_by_request": 1.46,
        "accept_length_by_request_ci95": [1.41, 1.51],
        "simulated_accept_length": 1.45,
        "goal_accept_length": 3.0,
        "concurrency": [1],
        "modes": {"instant": group},
        "contexts": {"under 1K": group},
        "degenerate": {"answers": 2, "reasons": {"loop": 2}, "accept_length_with_them": 1.55},
        "rounds": 5200,
        "accepted": 2640,
        "output_tokens": 7840,
        "prompts": 120,
        "positions": [
            {
                "position": i + 1,
                "reached": reached[i],
                "accepted": kept[i],
                "conditional": round(kept[i] / reached[i], 4),
                "joint": round(kept[i] / 5200, 4),
            }
            for i in range(3)
        ],
        "plain": {
            "tokens_per_s": 28.1 if timed_overall else None,
            "tokens_per_s_ci95": [27.6, 28.5] if timed_overall else None,
            "seconds_per_token": 0.0356 if timed_overall else None,
        },
        "draft": {
            "tokens_per_s": round(28.1 * speedup, 1) if speedup else None,
            "tokens_per_s_ci95": [34.0, 35.9] if timed_overall else None,
            "seconds_per_round": 0.0424 if timed_overall else None,
        },
        "speedup": speedup,
        "speedup_ci95": [round(speedup - 0.04, 3), round(speedup + 0.04, 3)] if speedup else None,
        "round_cost": 1.19 if timed_overall else None,
        "round_cost_ci95": [1.16, 1.22] if timed_overall else None,
        "break_even_accept_length": 1.19 if timed_overall else None,
        "verdict": {
            "pays": speedup > 1 if speedup else None,
            "words": "The draft pays: with k = 3 a round gains 1.47 tokens and costs 1.19 plain "
            "decode steps, so decoding runs at 1.24 times its plain speed "
            "(95 % interval 1.20 to 1.28, batch 1).",
        },
        "equal_outputs": {
            "compared": 120,
            "equal": 116,
            "rate": 0.9667,
            "dtype": "bfloat16",
            "words": "116 of 120 outputs equal plain greedy decoding.",
        },
        "domains": domains,
        "definitions": {
            "accept_length": "1 + accepted draft tokens / rounds, summed over all prompts",
            "ci95": "95 % percentile bootstrap over prompts, 2,000 resamples",
        },
        "versions": {
            "python": "3.12.7",
            "torch": "2.13.0",
            "transformers": "5.24.0",
            "aerie": "0.1.0",
        },
        "digests": {"target": "b1" * 16, "draft": "d2" * 16, "suite": "5e" * 16},
        "sampling": {"temperature": 0, "max_new_tokens": 48},
        "hardware": {"cpu": "AMD EPYC 7763", "threads": 2, "memory_gib": 24.0},
        "repeats": 3,
        "requests": [
            {
                "id": "swe_agent/0.0",
                "domain": "swe_agent",
                "output_tokens": 48,
                "rounds": 31,
                "accepted": 16,
                "equal": True,
            }
        ],
    }


def train(steps: int = 300) -> list[dict[str, Any]]:
    """Records of `train.jsonl`."""
    rng = random.Random(2)
    result = []
    for step in range(1, steps + 1):
        done = step / steps
        skill = 1 - math.exp(-4 * done)
        result.append(
            {
                "step": step,
                "epoch": min(2, int(done * 3)),
                "tokens": 2000,
                "supervised": 1400,
                "loss": round(9.5 - 5.6 * skill + rng.gauss(0, 0.12), 4),
                "learning_rate": 6e-4 * min(step / 15, 0.5 + 0.5 * math.cos(math.pi * done)),
                "gradient_norm": round(0.6 + rng.random(), 4),
                "accuracy": [
                    round(max(0, a * skill + rng.gauss(0, 0.012)), 4) for a in (0.42, 0.3, 0.22)
                ],
            }
        )
    return result


def scaling(names: list[str]) -> dict[str, Any]:
    """`scaling.json`, as Aerie makes it of points of a saturating curve."""
    rng = random.Random(5)
    held_out = [
        {"prompt": f"p{place}", "dataset": names[place % len(names)], "rounds": rng.randint(30, 90)}
        for place in range(60)
    ]
    found = []
    for seed, size in ((0, 28), (1, 28), (0, 56), (1, 56), (0, 112), (0, 224), (0, 448)):
        gain = 0.6 - 1.6 * size**-0.5 + rng.gauss(0, 0.01)
        entries = [
            entry | {"accepted": [round(entry["rounds"] * gain * rng.uniform(0.8, 1.2))]}
            for entry in held_out
        ]
        datasets = {name: size // len(names) + 1 for name in names}
        found.append(
            {"seed": seed, "counts": {"samples": size, "datasets": datasets}, "held_out": entries}
        )
    content = summarise(found, 0.02, 12.5, "GPU-hours")
    return {"artifact": "scaling", "contract": VERSIONS["scaling"], **content}


def map_study(names: list[str]) -> dict[str, Any]:
    """`map_study.json`."""
    sizes = []
    for size, share in ((4096, 0.94), (8192, 0.987), (32768, 1.0)):
        known = size <= 8192
        entry = {
            "accept_length": 1.4 + share / 20 if known else None,
            "accept_length_ci95": [1.38, 1.5] if known else None,
            "lost": round(0.987 - share, 3) if known else None,
            "lost_ci95": [0.0, 0.06] if known else None,
        }
        sizes.append(
            {
                "size": size, "coverage": share, "ceiling": 1 + 3 * share,
                "head_bytes": size * 1152, "head_seconds": size / 1e8, **entry,
                "datasets": {name: {"coverage": share, **entry} for name in names},
            }
        )  # fmt: skip
    content = {"artifact": "map_study", "contract": VERSIONS["map_study"]}
    return content | {"own": 8192, "k": 3, "sizes": sizes}


ROLLING = {
    "artifact": "rolling", "contract": VERSIONS["rolling"], "budget_bytes": 4_000_000_000_000,
    "windows": 9, "epochs": 3, "captures": {"chat/000": 3, "chat/001": 2},
    "bytes_written": 9_200_000_000_000, "peak_bytes": 3_900_000_000_000,
    "capture_s": 205_000.5, "training_s": 43_210.0,
}  # fmt: skip


def mix_study(names: list[str]) -> dict[str, Any]:
    """`mix_study.json`, as Aerie makes it of two drafts of each mix."""
    rng = random.Random(11)
    held_out: list[dict[str, Any]] = [
        {"prompt": f"p{place}", "dataset": names[place % len(names)], "rounds": rng.randint(30, 90)}
        for place in range(60)
    ]

    def point(without: str | None) -> dict[str, Any]:
        # A domain lacks most where its own dataset was left out.
        entries = [
            entry
            | {"accepted": [round(entry["rounds"] * (0.5 - 0.1 * (entry["dataset"] == without)))]}
            for entry in held_out
        ]
        return {"held_out": entries}

    several = {name: [point(name), point(name)] for name in names}
    return {
        "artifact": "mix_study", "contract": VERSIONS["mix_study"], "divisor": 4, "seeds": 2,
        "samples": dict.fromkeys(names, 25), "effects": effects([point(None)] * 2, several),
    }  # fmt: skip


def evaluation(names: list[str]) -> dict[str, Any]:
    """`eval.json` of twelve epochs."""

    def tally(length: float, samples: int) -> dict[str, Any]:
        return {
            "accept_length": round(length, 4),
            "samples": samples,
            "rounds": samples * 60,
            "acceptance": [0.33, 0.1, 0.03],
        }

    rng = random.Random(3)
    offsets = {name: rng.uniform(-0.12, 0.16) for name in names}
    epochs = [
        {
            "epoch": epoch,
            "overall": tally(base, 23),
            "datasets": {n: tally(base + o * (1 - 0.4 / epoch), 2) for n, o in offsets.items()},
        }
        for epoch, base in enumerate((1.47 - 0.16 * 0.6**n for n in range(12)), start=1)
    ]
    return {"k": 3, "epochs": epochs}


def coverage(names: list[str], token: str = " nid") -> dict[str, Any]:
    """`coverage.json`."""
    rng = random.Random(4)
    missing = [[41234, 7, token], [30211, 4, "\n\n\t"], [28001, 3, " 鷲"], [9, 1, None]]
    return {
        "overall": 0.9871,
        "size": 8192,
        "padded": 1204,
        "datasets": {
            name: {
                "coverage": round(rng.uniform(0.962, 0.998), 4),
                "supervised": rng.randint(2800, 5200),
                "distinct": rng.randint(600, 1400),
                "missing_top": missing,
            }
            for name in names
        },
    }


def sidecar(artifact: str, counts: dict[str, Any], **provenance: Any) -> dict[str, Any]:
    """The frame that all sidecars share."""
    return {
        "artifact": artifact,
        "contract": VERSIONS[artifact],
        "files": {"model.safetensors": {"bytes": 21_400_000, "xxh3": "ab" * 16}},
        "counts": counts,
        "provenance": provenance,
    }


def write(path: Path, content: Any) -> Path:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=True), encoding="utf-8")
    return path


def write_dataset(work: Path, name: str, hostile: bool) -> tuple[list[Path], list[Path]]:
    """Artifacts of one dataset: candidates, selection, licence; and sidecars of two parts."""
    rng = random.Random(name)
    identity, licence = DATASETS.get(name, ("local/data", "unknown"))
    bad = {HOSTILE: 1} if hostile else {}
    rejects = {"duplicate": rng.randint(1, 3), "no_user_turn": 1, "prompt_too_long": 1, **bad}
    counts = {"rows": 48, "candidates": 48 - sum(rejects.values()), "rejects": rejects}
    parts = [
        {"name": "000", "rows": 19, "dropped": 1},
        {"name": "001", "rows": 18, "dropped": 1},
    ]
    selection = {
        "dataset": name,
        "take": 36,
        "part_size": 20,
        "rows": 48,
        "selected": 37,
        "surplus": 2,
        "rejected": sum(rejects.values()) + 2,
        "duplicates": {"earlier_dataset": 2},
        "parts": parts,
    }
    sources = {"data/train.jsonl": {"xxh3": "1a" * 16, "bytes": 40_960}}
    single = [
        write(
            work / "candidates" / name / "candidates.json",
            sidecar("candidates", counts, dataset=name, adapter=identity, sources=sources),
        ),
        write(work / "prompts" / name / "selection.json", selection),
        write(
            work / "prompts" / name / "licence.json",
            {
                "id": HOSTILE if hostile else identity,
                "licence": licence,
                "category": "code",
                "adapter": identity,
                "rows": 48,
            },
        ),
    ]
    several = []
    for part in ("000", "001"):
        lost = {"truncated": rng.randint(0, 2), "repetitive": rng.randint(0, 1)}
        counts = {
            "rows": 20 - sum(lost.values()),
            "rejects": lost,
            "prompt_tokens": rng.randint(1600, 4200),
            "output_tokens": rng.randint(1400, 2600),
        }
        path = work / "responses" / name / f"{part}.json"
        several.append(write(path, sidecar("responses", counts)))
    return single, several


def write_build(work: Path, names: list[str] | None = None, hostile: bool = False) -> Inputs:
    """Write the artifacts of a whole build under `work` and return their paths."""
    names = names or list(DATASETS)
    layers = {"hf_hidden_states": [2, 15, 27], "sglang_config": [1, 14, 26]}
    settings = {"steps": 3, "epochs": 3, "learning_rate": 6e-4, "betas": [0.9, 0.95], "width": None}
    found = {name: write_dataset(work, name, hostile) for name in names}
    states = [
        write(
            work / "states" / name / "000" / "index.json",
            {"artifact": "states", "contract": 1, "files": {}, "layers": layers,
             "counts": {"tokens": 7300, "samples": 38}, "provenance": {}},
        )
        for name in names
    ]  # fmt: skip
    target = sidecar(
        "target",
        {"layers": 30, "hidden_size": 576, "vocab_size": 49152, "max_position": 8192},
        name=HOSTILE if hostile else "SmolLM2-135M-Instruct",
        revision="9f" * 16,
        dtype="bfloat16",
        licence="Apache-2.0",
    )
    draft = sidecar(
        "draft",
        {"parameters": 11_203_968, "steps": 300, "supervised": 122_400, "samples": 362},
        layers=layers,
        settings=settings,
        target="9f" * 16,
        map="7c" * 16,
    )
    lock = {
        "artifact": "lock",
        "contract": VERSIONS["lock"],
        "target": {"name": "SmolLM2-135M-Instruct", "revision": "9f" * 16},
        "datasets": {
            name: {"id": identity, "licence": licence, "digest": "c4" * 16}
            for name, (identity, licence) in DATASETS.items()
        },
        "contracts": VERSIONS,
        "requirements": {"run.txt": {"torch": "2.13.0", "transformers": "5.24.0"}},
    }
    record = work / "draft" / "main" / "train.jsonl"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("".join(json.dumps(entry) + "\n" for entry in train()), encoding="utf-8")
    return Inputs(
        bench=[write(work / "bench" / "main" / "heldout.json", bench(names=names))],
        draft=write(work / "draft" / "main" / "draft.json", draft),
        eval=write(work / "draft" / "main" / "eval.json", evaluation(names)),
        train=record,
        coverage=write(
            work / "vocab" / "coverage.json", coverage(names, HOSTILE if hostile else " nid")
        ),
        map=write(work / "vocab" / "map.json", sidecar("map", {"size": 8192, "vocab_size": 49152})),
        target=write(work / "target" / "target.json", target),
        lock=write(work / "lock.json", lock),
        scaling=write(work / "scaling" / "scaling.json", scaling(names)),
        map_study=write(work / "map_study" / "map_study.json", map_study(names)),
        mix_study=write(work / "mix_study" / "mix_study.json", mix_study(names)),
        rolling=write(work / "draft" / "main" / "rolling.json", ROLLING),
        selections=[single[1] for single, _ in found.values()],
        candidates=[single[0] for single, _ in found.values()],
        licences=[single[2] for single, _ in found.values()],
        responses=[path for _, several in found.values() for path in several],
        states=states,
    )
