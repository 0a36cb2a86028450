"""Tools as OpenAI-style function tools, whatever shape a dataset keeps them in."""

import json
from typing import Any

from aerie.contracts.prompts import Flag, Reason
from aerie.prompts.nested import inner_value, without_none
from aerie.prompts.rejected import Rejected
from aerie.prompts.schemas import parameters_schema
from aerie.prompts.text import repair

# Where others keep what OpenAI calls `parameters`: Anthropic, MCP, and sets made from them.
_PARAMETERS = ("parameters", "input_schema", "inputSchema", "arguments")


def read_tools(value: Any, flags: set[str]) -> str | None:
    """A tools column as a JSON list in text, or None where there are no tools.

    Takes a list or one tool, as objects, JSON, several JSON objects in a row or a Python literal.
    Each becomes `{"type": "function", "function": {"name", ..., "parameters": JSON Schema}}`; of
    tools of the same name the first is kept.

    Raises:
        Rejected: it is none of that, a tool has no name, or its parameters cannot be a schema.
    """
    if isinstance(value, str):
        value = inner_value(value, "tools") if value.strip() else None
    elif value is not None:
        value = _unpadded(value, flags)
    entries = [value] if isinstance(value, dict) else value or []
    if not isinstance(entries, list | tuple):
        raise Rejected(Reason.BAD_INNER_JSON, f"tools are {type(value).__name__}, not a list")
    tools: dict[str, dict[str, Any]] = {}
    for entry in entries:
        tool = inner_value(entry, "tools") if isinstance(entry, str) else entry
        if tool is None:
            flags.add(Flag.NONE_PADDING_REMOVED)
            continue
        function = _function(tool, flags)
        tools.setdefault(function["name"], {"type": "function", "function": function})
    if not tools:
        return None
    return repair(json.dumps(list(tools.values()), ensure_ascii=False))[0]


def _function(tool: Any, flags: set[str]) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise Rejected(Reason.BAD_INNER_JSON, f"a tool is {type(tool).__name__}, not an object")
    inner = tool.get("function", tool)
    if isinstance(inner, str):
        # In the flat form `function` may be the name.
        inner = {**tool, "name": inner} if "name" not in tool else tool
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise Rejected(Reason.BAD_INNER_JSON, "a tool has no name")
    function = {
        key: value
        for key, value in inner.items()
        if key not in (*_PARAMETERS, "type", "function", "description")
    }
    description = inner.get("description")
    if description is not None:
        function["description"] = description if isinstance(description, str) else str(description)
    for key in _PARAMETERS:
        if inner.get(key) is not None:
            function["parameters"] = parameters_schema(inner[key], flags)
            if key != "parameters":
                flags.add(Flag.TOOL_SCHEMA_CONVERTED)
            break
    return function


def _unpadded(value: Any, flags: set[str]) -> Any:
    without = without_none(value)
    if without != value:
        flags.add(Flag.NONE_PADDING_REMOVED)
    return without
