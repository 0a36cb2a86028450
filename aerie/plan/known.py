"""How many distinct prompts a public dataset has at most, for a plan made before it is read.

By the datasets' own cards, as read in 2026; rows are an upper bound where prompts repeat.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """At most so many distinct prompts, and why."""

    prompts: int
    source: str


def _rows(count: int, of: str = "rows") -> Known:
    return Known(count, f"{of}, by its card")


KNOWN: dict[str, Known] = {
    "nebius/SWE-agent-trajectories": Known(
        6651, "80,036 runs over 6,426 issues of SWE-bench-extra and 225 of SWE-bench dev"
    ),
    "SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K": _rows(3538, "rows in two files"),
    "open-r1/Mixture-of-Thoughts": _rows(349317, "rows of `all`"),
    "open-thoughts/OpenThoughts-114k": _rows(113957),
    "nvidia/OpenCodeInstruct": _rows(5000000),
    "ise-uiuc/Magicoder-Evol-Instruct-110K": _rows(111183),
    "anon8231489123/ShareGPT_Vicuna_unfiltered": _rows(94000, "conversations, about"),
    "HuggingFaceH4/ultrachat_200k": _rows(207865, "rows of `train_sft`"),
    "mlabonne/open-perfectblend": _rows(1420909),
    "BAAI/Infinity-Instruct": _rows(659808, "rows of `0625`"),
    "nebius/SWE-rebench-V2": _rows(32079, "tasks"),
    "Agent-Ark/Toucan-1.5M": _rows(518516, "rows of `Kimi-K2`"),
    "lambda/hermes-agent-reasoning-traces": _rows(7646, "rows of `kimi`"),
    "lightseekorg/kimi-mtp-dataset": Known(477000, "rows, about, by projects that use it"),
    "allenai/WildChat-1M": _rows(837989),
    "Magpie-Align/Magpie-Qwen2.5-Pro-1M-v0.1": _rows(1000000, "rows, about"),
    "glaiveai/glaive-function-calling-v2": _rows(112960),
    "nvidia/OpenCodeReasoning": _rows(567850, "rows of `split_0`"),
    "nvidia/Open-SWE-Traces": _rows(207489, "trajectories"),
}
