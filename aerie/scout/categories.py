"""The ten categories that a mix is made of, as data: how each is searched and what it is for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Category:
    """One category.

    `searches` are words looked for in the names of datasets, `tags` are filters on the Hub's tags
    (those given together must all hold), `terms` are beginnings of words that mark a dataset as one
    of this category, and `known` are ids that are looked up by name whatever the searches find,
    beside those of `SUGGESTED` and of the adapters.
    """

    key: str
    name: str
    purpose: str
    searches: tuple[str, ...]
    tags: tuple[tuple[str, ...], ...]
    terms: tuple[str, ...]
    known: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suggestion:
    """One of the ten entries of the suggested mix: its category's key, and datasets that fit it."""

    number: int
    category: str
    ids: tuple[str, ...]


_GENERATION = "task_categories:text-generation"

_ALL = (
    Category(
        "coding_instructions",
        "coding instructions",
        "single coding tasks, asked in words",
        ("code-instruct", "opencode", "coding", "codealpaca", "code-feedback"),
        (("code", _GENERATION),),
        ("code", "coding", "instruct", "program", "evol", "python"),
    ),
    Category(
        "agentic_tool_use",
        "agentic and tool use",
        "issues to be resolved in a repository, tools to be called: the heaviest part of the mix",
        ("function-calling", "tool-use", "swe-", "agent-traj", "toucan", "tool-calling"),
        (("agent",), ("function-calling",), ("tool-use",)),
        ("agent", "tool", "function", "swe", "trajector", "issue"),
    ),
    Category(
        "reasoning_mathematics",
        "reasoning and mathematics",
        "long thinking: mathematics, science, puzzles",
        ("reasoning", "openthoughts", "mixture-of-thoughts", "math-instruct", "openmath"),
        (("math", _GENERATION), ("reasoning",)),
        ("reason", "math", "thought", "science", "proof", "r1"),
    ),
    Category(
        "general_chat",
        "general chat",
        "what people ask an assistant, over several turns and in many languages",
        ("wildchat", "ultrachat", "sharegpt", "chat-1m", "openassistant", "conversations"),
        (("conversational",), ("chat",)),
        ("chat", "conversation", "dialog", "sharegpt", "assistant", "multi-turn"),
    ),
    Category(
        "eagle3_training",
        "EAGLE-3 training sets",
        "mixes and answers that others trained draft models on",
        ("eagle", "speculative", "perfectblend", "specforge", "mtp", "draft-model", "regenerated"),
        (("speculative-decoding",), ("eagle3",)),
        ("eagle", "speculat", "perfectblend", "mtp", "draft", "specforge"),
        ("lightseekorg/kimi-mtp-dataset",),
    ),
    Category(
        "code_review_debugging",
        "code review and debugging",
        "changes to be judged, faults to be found",
        ("codereview", "code-review", "commitpack", "debug", "bug-fix", "code-edit"),
        (("code-review",), ("debugging",)),
        ("review", "debug", "bug", "commit", "fix", "diff", "edit"),
    ),
    Category(
        "long_form_writing",
        "long-form writing",
        "essays, stories and reports: answers of thousands of words",
        ("longwriter", "writing", "creative", "story", "essay", "long-form"),
        (("creative-writing",), ("writing", _GENERATION), ("story-generation",)),
        ("writ", "story", "essay", "creative", "long", "novel"),
        ("THUDM/LongWriter-6k",),
    ),
    Category(
        "deepseek_kimi",
        "DeepSeek and Kimi specific",
        "answers and trajectories by these families: the target's own habits, or close to them",
        ("kimi", "kimi-k2", "deepseek", "moonshot", "deepseek-r1", "deepseek-v3"),
        (("kimi",), ("deepseek",), ("distillation", _GENERATION)),
        ("kimi", "deepseek", "k2", "moonshot", "r1", "distill"),
    ),
    Category(
        "multi_language_coding",
        "multi-language coding",
        "code in many programming languages, not in Python alone",
        ("magicoder", "multilingual-code", "commitpackft", "polyglot", "rust", "opc-sft"),
        (("code", "multilingual"), ("rust",), ("typescript",)),
        ("code", "multi", "language", "rust", "java", "typescript", "polyglot"),
    ),
    Category(
        "large_synthetic",
        "large synthetic sets",
        "millions of generated prompts: breadth where the other categories are thin",
        ("infinity-instruct", "magpie", "nemotron", "tulu", "openhermes", "synthetic"),
        (("synthetic", _GENERATION), ("synthetic", "size_categories:1M<n<10M")),
        ("synthetic", "instruct", "magpie", "infinity", "post-training", "sft"),
    ),
)  # fmt: skip

CATEGORIES = {category.key: category for category in _ALL}

# The mix that is suggested for Kimi-K2.5, in its order.
SUGGESTED = (
    Suggestion(1, "coding_instructions", ("nvidia/OpenCodeInstruct",)),
    Suggestion(2, "agentic_tool_use", ("nebius/SWE-rebench-V2", "nebius/SWE-agent-trajectories")),
    Suggestion(3, "agentic_tool_use", ("Agent-Ark/Toucan-1.5M",)),
    Suggestion(
        4, "deepseek_kimi",
        ("lambda/hermes-agent-reasoning-traces", "camel-ai/seta-sft-kimi-k2.5-thinking"),
    ),
    Suggestion(5, "eagle3_training", ("mlabonne/open-perfectblend",)),
    Suggestion(
        6, "reasoning_mathematics",
        ("open-r1/Mixture-of-Thoughts", "open-thoughts/OpenThoughts-114k"),
    ),
    Suggestion(7, "general_chat", ("allenai/WildChat-1M",)),
    Suggestion(8, "code_review_debugging", ("ronantakizawa/github-codereview",)),
    Suggestion(
        9, "multi_language_coding",
        ("ise-uiuc/Magicoder-Evol-Instruct-110K", "nebius/SWE-rebench-V2"),
    ),
    Suggestion(
        10, "large_synthetic",
        ("BAAI/Infinity-Instruct", "Magpie-Align/Magpie-Qwen2.5-Pro-1M-v0.1"),
    ),
)  # fmt: skip
