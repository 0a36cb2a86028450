"""The map: which tokens of the target the draft can propose, and what share of the data that is."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aerie.config import VocabSettings
from aerie.contracts.sidecar import read_whole, write_sidecar
from aerie.contracts.vocab import Int64, VocabMap, read_counts, write_map
from aerie.errors import ConfigError, ContractError
from aerie.files import write_sealed
from aerie.gates.coverage import check_coverage
from aerie.target import Target, read_target

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("aerie")

_MISSING_SHOWN = 20


def make_map(counts: Sequence[Path], target: Path, settings: VocabSettings, out: Path) -> None:
    """Build the map from the counts of all datasets.

    `counts` are the sidecars of the counts, `target` is target.json. Writes `coverage.json`,
    `map.safetensors`, `t2d.pt` and `d2t.pt` beside `out`, and `out`, the sidecar of the map.

    Raises:
        ContractError: counts are missing, damaged or of another target.
        ConfigError: the size is impossible.
        GateError: the map leaves out too much.
    """
    model = read_target(target)
    tokenizer = model.tokenizer()
    datasets = {sidecar.stem: _counts(sidecar, model) for sidecar in counts}
    total = sum(datasets.values(), np.zeros(model.vocab_size, dtype=np.int64))
    vocab = build_map(total, kept_ids(model, tokenizer), settings.size)
    report = coverage(vocab, datasets, lambda token: str(tokenizer.decode([token])))
    out.unlink(missing_ok=True)
    write_sealed(out.with_name("coverage.json"), report)
    # Before the gate, and logged: Snakemake deletes the outputs of a job that a gate stopped.
    _log_coverage(report)
    shares = {name: entry["coverage"] for name, entry in report["datasets"].items()}
    check_coverage(report["overall"], shares, settings)
    data = out.with_name("map.safetensors")
    write_map(data, vocab)
    # Neither coverage nor the digests of the counts are in the sidecar: they change whenever data
    # grows, and a map that stayed the same must wake nothing downstream.
    write_sidecar(
        out,
        "map",
        [data, out.with_name("t2d.pt"), out.with_name("d2t.pt")],
        {"size": settings.size, "vocab_size": model.vocab_size},
        {"target": model.revision},
    )


def build_map(counts: Int64, kept: Iterable[int], size: int) -> VocabMap:
    """The `size` most frequent ids of `counts` [V], ties to the lower id, and all `kept` ids.

    Where fewer ids occur, the lowest ids that do not occur fill the map.

    Raises:
        ConfigError: the vocabulary, or `size` less the kept ids, is too small.
    """
    always = np.unique(np.fromiter(kept, dtype=np.int64))
    if not len(always) <= size <= len(counts):
        raise ConfigError(
            "vocab.size is impossible for this target",
            saw=size,
            expected=f"from {len(always)}, the special tokens that are always kept, "
            f"to {len(counts)}, the target's vocabulary",
            remedy="use a multiple of 64 in that range; 32000 is usual, 8192 for a small draft",
        )
    ids = np.arange(len(counts), dtype=np.int64)
    # Ids that do not occur tie at zero, so the padding is by lowest id without saying so.
    order = np.lexsort((ids, -counts))
    others = order[~np.isin(order, always)]
    chosen = np.sort(np.concatenate([always, others[: size - len(always)]]))
    return VocabMap(chosen, len(counts))


def kept_ids(target: Target, tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """Ids that the map keeps whatever the counts: the end tokens and the template's special ones.

    Not all special tokens: a large target reserves hundreds that nothing uses.
    """
    template = tokenizer.chat_template or ""
    text = "".join(template.values()) if isinstance(template, dict) else template
    special = {token: str(tokenizer.decode([token])) for token in target.special_token_ids}
    named = {token for token, name in special.items() if name and name in text}
    return named | set(target.end_token_ids)


def coverage(
    vocab: VocabMap, datasets: Mapping[str, Int64], text: Callable[[int], str]
) -> dict[str, Any]:
    """The share of supervised tokens that the map keeps, overall and per dataset.

    `datasets` are counts [V] by name; `text` gives a token as people read it. A dataset without
    supervised tokens counts as covered: the supervision gate is the one to speak of it.
    """
    total = sum(datasets.values(), np.zeros(vocab.vocab_size, dtype=np.int64))
    return {
        "overall": _share(vocab, total),
        "size": len(vocab.target_ids),
        "padded": int((total[vocab.target_ids] == 0).sum()),
        "datasets": {
            name: {
                "coverage": _share(vocab, counts),
                "supervised": int(counts.sum()),
                "distinct": int(np.count_nonzero(counts)),
                "missing_top": [
                    [token, int(counts[token]), text(token)] for token in _missed(vocab, counts)
                ],
            }
            for name, counts in datasets.items()
        },
    }


def _log_coverage(report: dict[str, Any]) -> None:
    log.info("coverage %.4f over all datasets", report["overall"])
    for name, entry in report["datasets"].items():
        missed = ", ".join(f"{text!r} x{count}" for _, count, text in entry["missing_top"][:8])
        log.info(
            "coverage %.4f of %s, %d supervised tokens; missed most: %s",
            entry["coverage"],
            name,
            entry["supervised"],
            missed or "none",
        )


def _share(vocab: VocabMap, counts: Int64) -> float:
    total = int(counts.sum())
    return int(counts[vocab.target_ids].sum()) / total if total else 1.0


def _missed(vocab: VocabMap, counts: Int64) -> list[int]:
    outside = np.where(vocab.t2d, 0, counts)
    order = np.argsort(-outside, kind="stable")[:_MISSING_SHOWN]
    return [int(token) for token in order if outside[token]]


def _counts(sidecar: Path, target: Target) -> Int64:
    revision = read_whole(sidecar, "counts")["provenance"]["target"]
    counts = read_counts(sidecar.with_suffix(".safetensors"))
    if revision != target.revision or counts.shape != (target.vocab_size,):
        raise ContractError(
            f"{sidecar} counts the tokens of another target",
            saw=revision,
            expected=target.revision,
            remedy=f"remove {sidecar} and run the build again",
        )
    return counts
