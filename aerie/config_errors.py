"""What is wrong with a configuration, in words that name the line and the remedy."""

from typing import Any

import yaml


def describe(problem: Any, text: str, schema: dict[str, Any]) -> str:
    """One of pydantic's errors as a paragraph: line of `text`, field, value, problem, remedy.

    `schema` is the JSON Schema of the whole configuration, which holds the remedies.
    """
    # pydantic puts the chosen member of a union into the location; a reader has no such key.
    location = [part for part in problem["loc"] if part not in ("PackageSource", "PathSource")]
    lines = [f"  field:    {'.'.join(map(str, location)) or '(top level)'}"]
    line = _line_of(text, location)
    if line:
        lines.append(f"  line:     {line}")
    unknown = problem["type"] == "extra_forbidden"
    if problem["type"] != "missing" and location:
        lines.append(f"  value:    {problem['input']!r}")
    lines.append(f"  problem:  {'unknown key' if unknown else problem['msg']}")
    lines.append(f"  remedy:   {_remedy(location, unknown, schema)}\n")
    return "\n".join(lines)


def _line_of(text: str, location: list[Any]) -> int | None:
    node = yaml.compose(text) if text else None
    line = None
    for part in location:
        if not isinstance(node, yaml.MappingNode):
            break
        for key, value in node.value:
            if key.value == str(part):
                line, node = key.start_mark.line + 1, value
                break
        else:
            break
    return line


def _remedy(location: list[Any], unknown: bool, schema: dict[str, Any]) -> str:
    node: dict[str, Any] = schema
    names = location[:-1] if unknown else location
    for part in names:
        found = _child(node, part, schema)
        if found is None:
            break
        node = found
    if unknown:
        keys = sorted(_resolve(node, schema).get("properties", {}))
        return f"remove it; the keys here are {', '.join(keys)}"
    if "remedy" in node:
        return str(node["remedy"])
    return f"give {node.get('description', 'what schemas/config.schema.json describes')}"


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        return dict(schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
    return node


def _child(node: dict[str, Any], part: Any, schema: dict[str, Any]) -> dict[str, Any] | None:
    for option in [node, *node.get("anyOf", [])]:
        resolved = _resolve(option, schema)
        found = resolved.get("properties", {}).get(str(part))
        if found is None:
            found = next(iter(resolved.get("patternProperties", {}).values()), None)
        if found is not None:
            return dict(found)
    return None
