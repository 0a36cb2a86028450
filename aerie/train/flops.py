"""Floating-point operations that the mathematics of a step needs: what utilisation is counted by.

A product of [a, b] and [b, c] has 2abc of them, and its gradients twice as many again. Counted are
the rows that have a label, not padding: `exact` of benchmarks/trainer/floor.py, and attention.
"""

from collections.abc import Sequence

from aerie.contracts.draft import DraftConfig
from aerie.train.schedule import Step


def step_flops(config: DraftConfig, steps: int, step: Step) -> int:
    """Operations of one optimizer step, all packs and training-time-test steps."""
    counts = [step.count(number) for number in range(steps)]
    samples = [(sample.rows, sample.answer) for pack in step.packs for sample in pack]
    return product_flops(config, step.tokens, counts) + attention_flops(config, samples, steps)


def product_flops(config: DraftConfig, rows: int, counts: Sequence[int]) -> int:
    """Operations of the matrix products for `rows` of which `counts[i]` have a label at step i."""
    hidden, wide, queries = config.hidden_size, config.intermediate_size, _queries(config)
    qkv = hidden * (queries + 2 * config.kv_heads * config.head_dim)
    head = hidden * config.draft_vocab_size
    # The states are not trained, so the first product has no gradient of its input; the teacher
    # has none at all.
    once = 2 * rows * config.aux_width * hidden + counts[0] * head
    projections = (2 * rows + sum(counts[1:])) * qkv
    layer = sum(counts) * (queries * hidden + 3 * hidden * wide + head)
    return 2 * (once + 3 * (projections + layer))


def attention_flops(
    config: DraftConfig, samples: Sequence[tuple[int, int]], steps: int
) -> int:  # fmt: skip
    """Operations of attention for samples of (rows, rows with a label).

    At step i a row sees step 0 of its own and earlier positions, and its own steps 1 to i.
    """
    pairs = 0
    for rows, answer in samples:
        for step in range(steps):
            active = max(answer - step, 0)
            pairs += active * (rows - answer + 1 + step) + active * (active - 1) // 2
    # Scores and their product with the values.
    return 2 * 3 * 2 * pairs * _queries(config)


def _queries(config: DraftConfig) -> int:
    return config.heads * config.head_dim
