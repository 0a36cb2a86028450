"""The floor of one training step at Kimi-K2.5's size: its matrix products, and one AdamW.

Each product is timed alone (CUDA events, the median): forward, input gradient, weight gradient, the
embedding's half of q/k/v once, q/k/v and gate/up as one product, the head on the supervised rows
and the map's columns. Attention, norms, activations and the loss come on top.

`all_rows` multiplies every row at every step, as SpecForge does: the floor of issue 5. `exact`
multiplies what the mathematics needs: after step 0 the supervised rows alone, and each weight's
gradient over all steps at once.
"""

from collections.abc import Callable
from typing import Any

import torch
from sizes import CONFIG, STEPS, SUPERVISED

HIDDEN, WIDE, MAP = CONFIG.hidden_size, CONFIG.intermediate_size, CONFIG.draft_vocab_size
HEADS = CONFIG.heads * CONFIG.head_dim
PARAMETERS = 1_190_948_864


def median_ms(run: Callable[[], object], repeats: int = 9) -> float:
    """Median time of `run` on the device, in milliseconds."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def products_ms(rows: int, inputs: int, outputs: int, parts: str = "fxw") -> float:
    """One product of [rows, inputs]: f(orward), gradient of x, gradient of w(eights)."""
    x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * 0.02
    grad = torch.randn(rows, outputs, device="cuda", dtype=torch.bfloat16)
    runs: dict[str, Callable[[], object]] = {
        "f": lambda: x @ weight.t(),
        "x": lambda: grad @ weight,
        "w": lambda: grad.t() @ x,
    }
    return sum(median_ms(runs[part]) for part in parts)


def adamw_ms() -> float:
    """PyTorch's fused AdamW of all parameters in float32."""
    p, m, v, g = (torch.zeros(PARAMETERS, device="cuda") for _ in range(4))
    g.normal_()
    step = torch.zeros((), device="cuda")
    return median_ms(
        lambda: torch._fused_adamw_(
            [p], [g], [m], [v], [], [step], lr=1e-4, beta1=0.9, beta2=0.95, weight_decay=0.0,
            eps=1e-8, amsgrad=False, maximize=False,
        )
    )  # fmt: skip


def floors(tokens: int, optimizer: float) -> dict[str, Any]:
    """Both floors at a token budget."""
    supervised = int(SUPERVISED * tokens)
    once = products_ms(tokens, 3 * HIDDEN, HIDDEN, "fw")
    once += products_ms(supervised, HIDDEN, MAP, "f")
    embeds = products_ms(tokens, HIDDEN, 3 * HEADS)
    layer = ((HIDDEN, 3 * HEADS), (HEADS, HIDDEN), (HIDDEN, 2 * WIDE), (WIDE, HIDDEN))
    head = STEPS * products_ms(supervised, HIDDEN, MAP)
    everything = once + embeds + head + STEPS * sum(products_ms(tokens, *sizes) for sizes in layer)
    exact = once + embeds + STEPS * products_ms(supervised, HIDDEN, MAP, "fx")
    exact += products_ms(STEPS * supervised, HIDDEN, MAP, "w")
    exact += products_ms(tokens, *layer[0], "fx")
    exact += (STEPS - 1) * products_ms(supervised, *layer[0], "fx")
    exact += products_ms(tokens + (STEPS - 1) * supervised, *layer[0], "w")
    for sizes in layer[1:]:
        exact += STEPS * products_ms(supervised, *sizes, "fx")
        exact += products_ms(STEPS * supervised, *sizes, "w")
    return {
        name: {"products_ms": round(ms, 1), "tokens_per_s": round(tokens / (ms + optimizer) * 1e3)}
        for name, ms in (("all_rows", everything), ("exact", exact))
    }
