"""The usual shapes of datasets: turns in a column, one question, an issue inside a trajectory."""

import re
from typing import Any, ClassVar

from aerie.contracts.prompts import Flag, Reason
from aerie.prompts.adapters.base import Adapter, Category
from aerie.prompts.normalise import Conversation
from aerie.prompts.rejected import Rejected
from aerie.prompts.turns import ROLES, list_of_turns, role_of, text_of

OWN_DATA = "generic/messages"


class Messages(Adapter):
    """Turns in one column: one of `one_of`, else the first of `columns`."""

    def find(self, row: dict[str, Any]) -> Conversation:
        return self.conversation(row, turns_column(self, row), tools=row.get("tools"))


class Instruction(Adapter):
    """A single question in the first of `columns`."""

    def find(self, row: dict[str, Any]) -> Conversation:
        return self.conversation(row, [{"role": "user", "content": row[self.columns[0]]}])


class Issue(Adapter):
    """A trajectory whose first user turn wraps an issue in text that belongs to another agent.

    `issue` finds it; a turn without one is no prompt unless it `may_be_bare`, and is asked as it
    stands then. `notes` are flags of every row, `identity` is the column that names the issue.
    """

    category = Category.AGENTIC
    id_column = "instance_id"
    keeps_system = False
    issue: ClassVar[re.Pattern[str]] = re.compile(
        r"<(?P<tag>issue_description|pr_description|github_issue)>(?P<issue>.*)</(?P=tag)>",
        re.DOTALL,
    )
    may_be_bare: ClassVar[bool] = False
    identity: ClassVar[str | None] = "instance_id"
    notes: ClassVar[frozenset[Flag]] = frozenset()

    def find(self, row: dict[str, Any]) -> Conversation:
        flags: set[str] = set(self.notes)
        turns = list_of_turns(turns_column(self, row), flags)
        first = next((turn for turn in turns if role_of(turn) == "user"), None)
        if first is None:
            raise Rejected(Reason.NO_USER_TURN)
        question = self._question(text_of(first, flags), flags)
        tools = row.get("tools")
        if calls_unknown_tools(turns, tools) and "tools" in self.wanted():
            flags.add(Flag.TOOLS_MISSING)
        return self.conversation(
            row,
            [{"role": "user", "content": question}],
            tools=tools,
            identity=identity_of(row, self.identity),
            flags=frozenset(flags),
        )

    def _question(self, text: str, flags: set[str]) -> str:
        if not text.strip():
            raise Rejected(Reason.EMPTY_PROMPT, "the first user turn is empty")
        if found := self.issue.search(text):
            flags.add(Flag.ISSUE_EXTRACTED)
            return found["issue"].strip()
        if self.may_be_bare:
            return text
        raise Rejected(Reason.NO_ISSUE_TEXT, f"no match of {self.issue.pattern}")


class Statement(Instruction):
    """A task whose issue has its text in a column of its own, the first."""

    category = Category.AGENTIC
    id_column = "instance_id"

    def find(self, row: dict[str, Any]) -> Conversation:
        question = [{"role": "user", "content": row[self.columns[0]]}]
        return self.conversation(row, question, identity=identity_of(row, "instance_id"))


class GenericMessages(Messages):
    """A folder of one's own: `messages` and, where there are tools, `tools`."""

    id = OWN_DATA
    category = Category.OWN
    licence = "unknown"
    attribution = ""
    files = ("**/*.jsonl", "**/*.parquet")
    columns = ("messages",)
    optional = ("tools",)


def turns_column(reader: Adapter, row: dict[str, Any]) -> Any:
    """What the row holds in its column of turns, whichever name that has."""
    names = reader.one_of or reader.columns[:1]
    return next((row[name] for name in names if row.get(name) is not None), None)


def identity_of(row: dict[str, Any], column: str | None) -> str | None:
    """The name in a column of names, if there are both."""
    value = row.get(column) if column else None
    return None if value is None else str(value)


def calls_unknown_tools(turns: list[dict[str, Any]], tools: Any) -> bool:
    """Whether tools are called of which the row holds no description."""
    if tools not in (None, [], "") and str(tools).strip() != "[]":
        return False
    for turn in turns:
        name = turn.get("role") or turn.get("from")
        if turn.get("tool_calls") or turn.get("function_call") or name == "tool_call":
            return True
        if isinstance(name, str) and ROLES.get(name) == "tool":
            return True
    return False
