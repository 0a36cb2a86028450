"""Tools in every shape that datasets keep them in, as function tools with JSON Schema."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from aerie.contracts.prompts import Reason
from aerie.prompts.normalise import Rejected
from aerie.prompts.schemas import parameters_schema, type_schema
from aerie.prompts.tools import read_tools

OBJECT = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
WHOLE = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": OBJECT, "strict": True},
}
PLAIN = {"name": "f", "description": "d", "parameters": OBJECT}


def tools(value: Any) -> tuple[Any, set[str]]:
    flags: set[str] = set()
    text = read_tools(value, flags)
    return (None if text is None else json.loads(text)), flags


def converted(parameters: Any) -> dict[str, Any]:
    flags: set[str] = set()
    schema = parameters_schema(parameters, flags)
    Draft202012Validator.check_schema(schema)
    assert flags == ({"tool_schema_converted"} if schema != parameters else set())
    return schema


@pytest.mark.parametrize("value", [None, "", " ", "[]", [], "null"])
def test_no_tools(value: Any) -> None:
    assert tools(value) == (None, set())


def test_a_tool_in_its_own_form_is_left_alone() -> None:
    assert tools([WHOLE]) == ([WHOLE], set())


@pytest.mark.parametrize(
    "value",
    [
        PLAIN,
        [PLAIN],
        [json.dumps(PLAIN)],
        json.dumps([PLAIN]),
        json.dumps(PLAIN),
        repr([PLAIN]),
        f"{json.dumps(PLAIN, indent=1)}\n\n{json.dumps(PLAIN)}",
        [PLAIN, {**PLAIN, "description": "another of that name"}],
        [{"type": "function", **PLAIN}],
        [{"type": "function", "function": "f", "description": "d", "parameters": OBJECT}],
        [{"function": PLAIN}],
        [{**PLAIN, "parameters": json.dumps(OBJECT)}],
        [{"name": "f", "description": "d", "input_schema": OBJECT}],
        [{"name": "f", "description": "d", "inputSchema": OBJECT}],
    ],
)
def test_one_tool_in_many_forms(value: Any) -> None:
    found, flags = tools(value)
    assert found == [{"type": "function", "function": PLAIN}]
    assert flags <= {"tool_schema_converted"}


def test_padding_is_removed_from_tables_and_nulls_in_json_are_kept() -> None:
    padded = {"name": "f", "parameters": {**OBJECT, "default": None}}
    found, flags = tools([padded])
    assert (found[0]["function"]["parameters"], flags) == (OBJECT, {"none_padding_removed"})
    assert tools([PLAIN, None])[1] == {"none_padding_removed"}
    found, flags = tools(json.dumps([padded]))
    assert (found[0]["function"]["parameters"], flags) == (padded["parameters"], set())


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[1]",
        3,
        ["f"],
        "__import__('os')",
        "open",
        [{"description": "no name"}],
        [{"name": ""}],
        [{"name": 3}],
        [{"function": None}],
        [{"name": "f", "parameters": 3}],
        [{"name": "f", "parameters": "{"}],
        [{"name": "f", "parameters": {"x": 3}}],
        [{"name": "f", "parameters": {"properties": {"x": 3}, "type": "object"}}],
    ],
)
def test_what_is_no_tool(value: Any) -> None:
    with pytest.raises(Rejected) as no:
        tools(value)
    assert no.value.reason == Reason.BAD_INNER_JSON


@pytest.mark.parametrize(
    ("text", "schema", "optional"),
    [
        ("int", {"type": "integer"}, False),
        ("str, optional", {"type": "string"}, True),
        ("float (optional)", {"type": "number"}, True),
        ("bool, default is False", {"type": "boolean"}, True),
        ("List[str]", {"type": "array", "items": {"type": "string"}}, False),
        ("list[list[int]]", {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, False),  # noqa: E501
        ("array of numbers", {"type": "array", "items": {}}, False),
        ("Dict[str, int], optional", {"type": "object", "additionalProperties": {"type": "integer"}}, True),  # noqa: E501
        ("Tuple[int, str]", {"type": "array"}, False),
        ("Set[int]", {"type": "array", "items": {"type": "integer"}}, False),
        ("Union[int, str]", {"type": ["integer", "string"]}, False),
        ("int or str", {"type": ["integer", "string"]}, False),
        ("int | None", {"type": ["integer", "null"]}, False),
        ("Optional[List[int]]", {"type": "array", "items": {"type": "integer"}}, True),
        ("Union[List[int], str]", {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}, False),  # noqa: E501
        ("Literal['a', 'b']", {"enum": ["a", "b"]}, False),
        ("Callable[[float], float]", {}, False),
        ("Any", {}, False),
        ("np.ndarray", {}, False),
        ("", {}, False),
        ("]", {}, False),
    ],
)  # fmt: skip
def test_types_as_people_write_them(text: str, schema: dict[str, Any], optional: bool) -> None:
    assert type_schema(text) == (schema, optional)


def test_a_map_of_parameters() -> None:
    schema = converted(
        {
            "n": {"type": "int", "description": "a number"},
            "names": {"type": "List[str], optional", "description": "l", "default": ""},
            "unit": {"type": "str", "default": "C"},
            "type": {"type": "str", "description": "a parameter of that name"},
            "short": "bool",
        }
    )
    assert schema["required"] == ["n", "type", "short"]
    assert schema["properties"]["n"] == {"type": "integer", "description": "a number"}
    assert schema["properties"]["type"]["type"] == "string"
    assert converted({}) == {"type": "object", "properties": {}}


def test_other_names_of_types_and_wrong_keywords() -> None:
    schema = converted(
        {
            "type": "dict",
            "properties": {
                "a": {"type": "float", "required": True, "description": 3},
                "b": {"type": "array", "items": {"type": "dict", "properties": {}}},
                "c": {"type": "any", "enum": "one"},
                "d": {"type": ["str", "null"], "minimum": "x", "default": None},
                "e": {"type": "array", "items": [{"type": "int"}, {"type": "str"}]},
            },
            "required": ["b"],
        }
    )
    assert schema == {
        "type": "object",
        "properties": {
            "a": {"type": "number"},
            "b": {"type": "array", "items": {"type": "object", "properties": {}}},
            "c": {"enum": ["one"]},
            "d": {"type": ["string", "null"], "default": None},
            "e": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        },
        "required": ["b", "a"],
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}, "required": []},
        {"type": "object", "properties": {"type": {}}, "additionalProperties": False},
        {"type": "object", "$defs": {"A": {"enum": [1, None]}}, "properties": {"a": {"$ref": "#/$defs/A"}}},  # noqa: E501
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    ],
)  # fmt: skip
def test_good_schemas_are_left_alone(schema: dict[str, Any]) -> None:
    assert converted(schema) == schema


_WORDS = st.sampled_from(
    [
        "int",
        "List[str]",
        "Dict[str, int]",
        "dict",
        "object",
        "array",
        "any",
        "Union[int, List[str]]",
        "str, optional",
        "Optional[int]",
        "Literal['a']",
        "x y",
        "list of int",
        "Tuple[int]",
        "[",
        "",
    ]
)
_KEYS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "required",
        "enum",
        "description",
        "default",
        "minimum",
        "anyOf",
        "additionalProperties",
        "format",
        "x",
        "optional",
        "$ref",
        "not",
        "examples",
        "title",
    ]
)
_ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), _WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_KEYS, _ANY, max_size=5))
def test_whatever_comes_out_is_a_schema(parameters: dict[str, Any]) -> None:
    try:
        schema = parameters_schema(parameters, set())
    except Rejected:
        return
    Draft202012Validator.check_schema(schema)
    again: set[str] = set()
    assert parameters_schema(schema, again) == schema
    assert not again


@given(_WORDS)
def test_types_are_schemas(text: str) -> None:
    Draft202012Validator.check_schema(type_schema(text)[0])
