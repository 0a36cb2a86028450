"""Coding tasks asked in words, and code to be reviewed."""

import re
from typing import Any, ClassVar

from aerie.contracts.prompts import Flag, Reason
from aerie.prompts.adapters.base import Adapter, Category
from aerie.prompts.adapters.families import Instruction
from aerie.prompts.normalise import Conversation
from aerie.prompts.rejected import Rejected


class OpenCodeInstruct(Instruction):
    id = "nvidia/OpenCodeInstruct"
    category = Category.CODING
    licence = "CC-BY-4.0"
    attribution = "NVIDIA, OpenCodeInstruct"
    files = ("data/train-*.parquet",)
    columns = ("input",)
    optional = ("average_test_score", "domain")
    stratum = "domain"
    least_score: ClassVar[float] = 0.8

    def find(self, row: dict[str, Any]) -> Conversation:
        # Text in the repository, a number in exports of it; absent or odd does not mean bad.
        try:
            score = float(row["average_test_score"])
        except (TypeError, ValueError):
            score = self.least_score
        if score < self.least_score:
            raise Rejected(Reason.FILTERED, f"average_test_score {score} < {self.least_score}")
        return super().find(row)


class OpenCodeReasoning(Instruction):
    id = "nvidia/OpenCodeReasoning"
    category = Category.CODING
    licence = "CC-BY-4.0"
    attribution = "NVIDIA, OpenCodeReasoning"
    # The questions of `split_1` are "-": they are to be looked up in the sets that they came from.
    files = ("split_0/*.parquet",)
    columns = ("input",)


class MagicoderEvolInstruct(Instruction):
    id = "ise-uiuc/Magicoder-Evol-Instruct-110K"
    category = Category.MULTI_LANGUAGE
    licence = "Apache-2.0"
    attribution = "iSE UIUC, Magicoder-Evol-Instruct-110K"
    files = ("data-evol_instruct-decontaminated.jsonl",)
    columns = ("instruction",)


class GithubCodeReview(Adapter):
    id = "ronantakizawa/github-codereview"
    category = Category.REVIEW
    # The tag was changed from `mit` to `other`, and what that means was not answered.
    licence = "unknown"
    attribution = "Ronan Takizawa, github-codereview"
    files = ("**/train*.parquet",)
    columns = ("before_code",)
    optional = ("file_path", "language")
    stratum = "language"

    def find(self, row: dict[str, Any]) -> Conversation:
        code = row["before_code"]
        if not isinstance(code, str) or not code.strip():
            raise Rejected(Reason.EMPTY_PROMPT, "there is no code")
        columns = (row["language"], row["file_path"])
        language, path = (value if isinstance(value, str) else "" for value in columns)
        # Longer than any fence inside, as Markdown wants it.
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
        question = (
            f"Review the following {f'{language} ' if language else ''}code"
            f"{f' from `{path}`' if path else ''} and point out concrete problems.\n\n"
            f"{fence}{language.lower()}\n{code.rstrip()}\n{fence}"
        )
        messages = [{"role": "user", "content": question}]
        return self.conversation(row, messages, flags=frozenset({Flag.PROMPT_TEMPLATED}))
