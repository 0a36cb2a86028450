"""Parameters of tools as JSON Schema: Python's names of types, maps of parameters, `dict`."""

import ast
from typing import Any

from aerie.contracts.prompts import Flag, Reason
from aerie.prompts.nested import inner_json
from aerie.prompts.rejected import Rejected

_SIMPLE = {
    **{name: name for name in ("string", "integer", "number", "boolean", "object", "array")},
    "null": "null",
    **dict.fromkeys(("str", "text", "char", "bytes", "date", "datetime", "uuid"), "string"),
    **dict.fromkeys(("int", "long", "short", "byte", "bigint"), "integer"),
    **dict.fromkeys(("float", "double", "decimal", "numeric"), "number"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("dict", "map", "mapping", "hashmap", "json"), "object"),
    **dict.fromkeys(("list", "tuple", "set", "frozenset", "sequence", "iterable"), "array"),
    **dict.fromkeys(("none", "nonetype", "void"), "null"),
}
_JSON_TYPES = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))
_LISTS_OF_SCHEMAS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_MAPS_OF_SCHEMAS = frozenset(("properties", "$defs", "definitions", "patternProperties"))
_SCHEMAS = frozenset(("items", "additionalProperties", "not"))
# Characters; what is longer is no type, and would take long to find that out.
_LONGEST_TYPE = 1000
# What a keyword must hold; anything else says nothing and is left out.
_HOLDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("description", "title", "format", "pattern", "$ref", "$schema"), str),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (int, float)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), int),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), bool),
    "examples": list,
}


def parameters_schema(value: Any, flags: set[str]) -> dict[str, Any]:
    """The JSON Schema of a function's parameters, an object with `properties`.

    Raises:
        Rejected: there is no such schema in `value`.
    """
    if isinstance(value, str):
        value = inner_json(value, "parameters of a tool") if value.strip() else {}
    if not isinstance(value, dict):
        raise Rejected(Reason.BAD_INNER_JSON, f"parameters are {type(value).__name__}")
    schema = _schema(value) if _is_schema(value) else _of_map(value)
    schema.setdefault("type", "object")
    if schema != value:
        flags.add(Flag.TOOL_SCHEMA_CONVERTED)
    return schema


def type_schema(text: str) -> tuple[dict[str, Any], bool]:
    """The schema of a type as Python, or people, write it, and whether it may be left out.

    `List[str], optional` gives `({"type": "array", "items": {"type": "string"}}, True)`; a name
    that says nothing to JSON Schema gives a schema that takes anything.
    """
    if len(text) > _LONGEST_TYPE:
        return {}, False
    name, *more = _split(text.replace("(optional)", ", optional").strip())
    optional = any("optional" in word or "default" in word for word in map(str.lower, more))
    if name.lower().startswith(("list of ", "array of ")):
        return {"type": "array", "items": type_schema(name.split(" of ", 1)[1])[0]}, optional
    try:
        node = ast.parse(name.replace(" or ", " | "), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}, optional
    return _of_node(node), optional or name.startswith(("Optional[", "typing.Optional["))


def _is_schema(value: dict[str, Any]) -> bool:
    if isinstance(value.get("type"), str | list) or value.keys() & {"anyOf", "oneOf", "$ref"}:
        return True
    properties = value.get("properties")
    return isinstance(properties, dict) and all(
        isinstance(one, dict) for one in properties.values()
    )


def _of_map(parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema of parameters by name: `{"n": {"type": "int, optional", "description": ...}}`."""
    properties, required = {}, []
    for name, entry in parameters.items():
        entry = {"type": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, dict):
            raise Rejected(Reason.BAD_INNER_JSON, f"the parameter {name!r} is {entry!r}")
        written = entry.get("type")
        optional = isinstance(written, str) and type_schema(written)[1]
        said = entry.get("required")
        if said is True or (said is not False and not optional and "default" not in entry):
            required.append(name)
        properties[name] = _schema(entry)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


def _schema(value: Any) -> dict[str, Any]:
    """`value` as a schema: types by their JSON names, and keywords that hold what they must."""
    if isinstance(value, str):
        return type_schema(value)[0]
    if not isinstance(value, dict):
        raise Rejected(Reason.BAD_INNER_JSON, f"a schema is {value!r}")
    result: dict[str, Any] = {}
    for key, item in value.items():
        if key == "type":
            said = _type(item)
            result |= {name: said[name] for name in said if name == "type" or name not in value}
        elif key in _MAPS_OF_SCHEMAS:
            result[key] = {name: _any_schema(one) for name, one in _object(key, item).items()}
        elif key in _LISTS_OF_SCHEMAS or (key == "items" and isinstance(item, list)):
            schemas = [_any_schema(one) for one in item] if isinstance(item, list) else []
            result.update({"prefixItems" if key == "items" else key: schemas} if schemas else {})
        elif key in _SCHEMAS:
            result[key] = _any_schema(item)
        elif key == "required":
            continue
        elif key == "enum":
            result[key] = item if isinstance(item, list) else [item]
        elif _holds(key, item):
            result[key] = item
    required = _required(value)
    if required or isinstance(value.get("required"), list):
        result["required"] = required
    return result


def _holds(key: str, item: Any) -> bool:
    kinds = _HOLDS.get(key, object)
    # To Python True is a number.
    return isinstance(item, kinds) and (kinds in (bool, object) or not isinstance(item, bool))


def _any_schema(value: Any) -> bool | dict[str, Any]:
    return value if isinstance(value, bool) else _schema(value)


def _required(value: dict[str, Any]) -> list[str]:
    """Names that must be given: listed here, or marked one by one as older drafts do."""
    said = value.get("required")
    listed = [name for name in said if isinstance(name, str)] if isinstance(said, list) else []
    properties = value.get("properties")
    marked = [
        name
        for name, one in (properties.items() if isinstance(properties, dict) else ())
        if isinstance(one, dict) and one.get("required") is True
    ]
    return list(dict.fromkeys(listed + marked))


def _object(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Rejected(Reason.BAD_INNER_JSON, f"{key} of a schema is {value!r}")
    return value


def _type(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"type": value} if value in _JSON_TYPES else type_schema(value)[0]
    return _union([_type(one) for one in value]) if isinstance(value, list) else {}


def _of_node(node: ast.expr) -> dict[str, Any]:
    match node:
        case ast.Constant(value=None):
            return {"type": "null"}
        case ast.Name(id=name) | ast.Attribute(attr=name):
            known = _SIMPLE.get(name.lower())
            return {"type": known} if known else {}
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([_of_node(left), _of_node(right)])
        case ast.Subscript(value=outer, slice=inner):
            return _of_subscript(outer, inner.elts if isinstance(inner, ast.Tuple) else [inner])
    return {}


def _of_subscript(outer: ast.expr, inner: list[ast.expr]) -> dict[str, Any]:
    name = getattr(outer, "attr", getattr(outer, "id", "")).lower()
    if name in ("union", "optional"):
        return _union([_of_node(one) for one in inner])
    if name == "literal":
        values = [one.value for one in inner if isinstance(one, ast.Constant)]
        return {"enum": [one for one in values if isinstance(one, str | int | float | bool | None)]}
    schema = _of_node(outer)
    of = _of_node(inner[-1])
    if schema.get("type") == "array" and of and (name != "tuple" or len(inner) == 1):
        return {**schema, "items": of}
    if schema.get("type") == "object" and of and len(inner) == 2:
        return {**schema, "additionalProperties": of}
    return schema


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if {} in schemas:
        return {}
    if all(schema.keys() == {"type"} for schema in schemas):
        names: list[str] = []
        for schema in schemas:
            names += [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        names = list(dict.fromkeys(names))
        return {"type": names[0] if len(names) == 1 else names} if names else {}
    return {"anyOf": schemas} if len(schemas) > 1 else schemas[0]


def _split(text: str) -> list[str]:
    """`text` at the commas that are outside of brackets; never empty."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
