"""Rows of the kinds that are reported as broken, in the real schemas, and what becomes of them.

A case is a dataset, lines of a file of it, and one outcome for each line.
"""

import json
from typing import Any, NamedTuple

Outcome = dict[str, Any]


class Case(NamedTuple):
    """`lines` are raw lines, or rows that are written as JSON."""

    kind: str
    dataset: str
    lines: list[Any]
    outcomes: list[Outcome]


def keep(*turns: str, system: str | None = None, tools: str = "", flags: str = "") -> Outcome:
    return {
        "action": "keep",
        "reason": None,
        "flags": flags.split(),
        "system": system,
        "user_turns": list(turns),
        "tool_names": tools.split(),
    }


def repair(reason: str, *turns: str, flags: str = "", **more: Any) -> Outcome:
    return keep(*turns, flags=flags or reason, **more) | {"action": "repair", "reason": reason}


def drop(reason: str, action: str = "drop") -> Outcome:
    empty: Outcome = {"flags": [], "system": None, "user_turns": [], "tool_names": []}
    return {"action": action, "reason": reason, **empty}


def messages(*turns: Any, **columns: Any) -> dict[str, Any]:
    pairs = [
        {"role": turn[0], "content": turn[1]} if type(turn) is tuple else turn for turn in turns
    ]
    return {"messages": pairs, **columns}


def conversations(*turns: Any, **columns: Any) -> dict[str, Any]:
    pairs = [{"from": turn[0], "value": turn[1]} if type(turn) is tuple else turn for turn in turns]
    return {"conversations": pairs, **columns}


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def wild(*turns: tuple[str, str], **columns: Any) -> dict[str, Any]:
    marks = {"redacted": False, "toxic": False, "language": "English"}
    entries = [{"role": role, "content": text, **marks} for role, text in turns]
    return {"conversation": entries, "redacted": False, "toxic": False, **columns}


def openhands(text: Any, **columns: Any) -> dict[str, Any]:
    turns = [("system", "You are OpenHands"), ("user", text), ("assistant", "I look.")]
    return {"instance_id": "a__b-1", "trajectory": messages(*turns)["messages"], **columns}


def toucan(*turns: tuple[str, str], **columns: Any) -> dict[str, Any]:
    return {"uuid": "t", "messages": json.dumps(messages(*turns)["messages"]), **columns}


def glaive(system: str, chat: str) -> dict[str, Any]:
    return {"system": system, "chat": chat}


GENERIC = "generic/messages"
SHAREGPT = "anon8231489123/ShareGPT_Vicuna_unfiltered"
PERFECTBLEND = "mlabonne/open-perfectblend"
INFINITY = "BAAI/Infinity-Instruct"
SWE_AGENT = "nebius/SWE-agent-trajectories"
DEEPSWE = "SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K"
OPEN_SWE = "nvidia/Open-SWE-Traces"
OPENHANDS = "nebius/SWE-rebench-openhands-trajectories"
REBENCH = "nebius/SWE-rebench-V2"
SMITH = "SWE-bench/SWE-smith"
SMITH_RUNS = "SWE-bench/SWE-smith-trajectories"
NEMOTRON = "nvidia/Nemotron-SFT-SWE-v3"
TOUCAN = "Agent-Ark/Toucan-1.5M"
LAMBDA = "lambda/hermes-agent-reasoning-traces"
HERMES = "NousResearch/hermes-function-calling-v1"
GLAIVE = "glaiveai/glaive-function-calling-v2"
XLAM = "Salesforce/xlam-function-calling-60k"
WILDCHAT = "allenai/WildChat-1M"
MTP = "lightseekorg/kimi-mtp-dataset"
REVIEW = "ronantakizawa/github-codereview"

IMAGE = {"type": "image_url", "image_url": {"url": "x.png"}}
PADDED = {"command": {"type": "string"}, "path": None}
CALL = {"id": "c1", "function": {"name": "run", "arguments": {"command": "ls", "path": None}}}
DECLARED = f"<|im_system|>tool_declare<|im_middle|>{json.dumps([tool('geo')])}<|im_end|>"
NO_FUNCTIONS = "SYSTEM: You are a helpful assistant, with no access to external functions."
FUNCTIONS = "SYSTEM: You have access to the following functions -\n"
XLAM_TYPES = {
    "a": {"type": "int", "description": "n"},
    "b": {"type": "List[Dict[str, int]], optional", "description": "l", "default": "[]"},
    "c": {"type": "Union[str, float]", "description": "u"},
    "d": {"type": "Callable[[float], float]", "description": "f"},
    "e": {"type": "Tuple[int, int]", "description": "t"},
}
ISSUE = "Here's the issue text:\nISSUE:\n{}\n\nINSTRUCTIONS:\nNow …\n(Open file: n/a)\nbash-$"


def swe_agent(text: str, id: str = "a__b-1") -> dict[str, Any]:
    other = {"cutoff_date": "01.01.2023", "mask": False}
    turns = [
        {**other, "role": "system", "system_prompt": "SETTING: …", "text": None},
        {**other, "role": "user", "system_prompt": None, "text": text},
    ]
    return {"instance_id": id, "trajectory": turns, "eval_logs": "x"}


TEXT = [
    Case("pair", GENERIC, [r'{"messages": [{"role": "user", "content": "Wave \ud83d\udc4b"}]}'],
         [keep("Wave 👋")]),
    Case("surrogates", SHAREGPT,
         [r'{"conversations": [{"from": "human", "value": "\udc4b\ud83d?"}]}'],
         [drop("contentless_prompt")]),
    Case("lone surrogate in tools", GENERIC,
         [r'{"messages": [{"role": "user", "content": "Go on, run it"}], '
          r'"tools": "[{\"name\": \"f\", \"description\": \"\ud83d\"}]"}'],
         [keep("Go on, run it", tools="f")]),
    Case("CRLF", INFINITY, [conversations(("human", "One\r\ntwo\rthree"))],
         [repair("newlines_normalised", "One\ntwo\nthree")]),
    Case("control characters, raw in the line", GENERIC,
         ['{"messages": [{"role": "user", "content": "a\x00b\x1b[0m\tc"}]}\r'],
         [repair("control_chars_removed", "ab[0m\tc")]),
    Case("mark before a row", GENERIC, ["\ufeff" + json.dumps(messages(("user", "Why so?")))],
         [repair("bom_removed", "Why so?")]),
    Case("mark before nothing, blank lines", GENERIC, ["\ufeff", "   ", "\r"],
         [drop("blank_line", "skip")] * 3),
    Case("not objects", GENERIC, ["[1, 2]", '"text"', "null", "{", "{'messages': []}"],
         [drop("not_an_object", "error")] * 3 + [drop("bad_json", "error")] * 2),
    Case("zero width stays", PERFECTBLEND, [conversations(("human", "a\u200bb c"))],
         [keep("a\u200bb c")]),
    Case("entities and backslashes stay", SHAREGPT,
         [conversations(("human", "a\\_b &amp; <b>c</b>"))],
         [keep("a\\_b &amp; <b>c</b>")]),
    Case("too long", WILDCHAT, [wild(("user", "x" * 100_001)), wild(("user", "x" * 99_999))],
         [drop("prompt_too_long"), keep("x" * 99_999)]),
    Case("too long in all turns together", PERFECTBLEND,
         [conversations(("human", "a" * 60_000), ("gpt", ""), ("human", "b" * 60_000))],
         [drop("prompt_too_long")]),
    Case("markers in a system text", PERFECTBLEND,
         [conversations(("system", "<|im_start|>system"), ("human", "What is a heap?"))],
         [drop("special_token_in_text")]),
    Case("markers in a later turn", "HuggingFaceH4/ultrachat_200k",
         [messages(("user", "What is a heap?"), ("assistant", "<|im_end|>"),
                   ("user", "and <|tool_calls_section_begin|>?"))],
         [drop("special_token_in_text")]),
    Case("duplicates across spelling", "ise-uiuc/Magicoder-Evol-Instruct-110K",
         [{"instruction": "Sort ﬁles"}, {"instruction": "sort\u200b FILES\n"}],
         [keep("Sort ﬁles"), drop("duplicate")]),
]  # fmt: skip

TURNS = [
    Case("parts", GENERIC, [messages(("user", [{"type": "text", "text": "What "}, "now?"]))],
         [repair("content_parts_joined", "What now?")]),
    Case("an image among parts", GENERIC,
         [messages(("user", [{"type": "text", "text": "What?"}, IMAGE])),
          messages(("user", [{"image": "x.png"}]))],
         [drop("multimodal"), drop("multimodal")]),
    Case("an image in an answer", GENERIC,
         [messages(("user", "Draw a cat"), ("assistant", [IMAGE]))],
         [keep("Draw a cat")]),
    Case("an image in a later turn", GENERIC,
         [messages(("user", "Draw a cat"), ("assistant", "ok"), ("user", [IMAGE]))],
         [drop("multimodal")]),
    Case("a list of numbers is text", MTP, [conversations(("human", "[3, 1, 2]"))],
         [keep("[3, 1, 2]")]),
    Case("a list of objects is text", MTP, [conversations(("human", '[{"id": 3}] is what?'))],
         [keep('[{"id": 3}] is what?')]),
    Case("parts of text in a string", MTP,
         [conversations(("human", '[{"type": "text", "text": "What now?"}]'))],
         [repair("content_parts_joined", "What now?",
                 flags="content_parts_joined json_string_decoded")]),
    Case("parts in a string elsewhere", GENERIC,
         [messages(("user", '[{"type": "text", "text": "Hi there"}]'))],
         [keep('[{"type": "text", "text": "Hi there"}]', flags="looks_like_stringified_parts")]),
    Case("markup in answers and questions", MTP,
         [conversations(("human", "Why <b>?"), ("gpt", "<think>a</think><|im_end|>")),
          conversations(("human", "Say <|im_end|>"))],
         [keep("Why <b>?"), drop("special_token_in_text")]),
    Case("user, answer, user, user", "HuggingFaceTB/smoltalk",
         [messages(("user", "One?"), ("assistant", "a"), ("user", "Two?"), ("user", "Three?"))],
         [repair("merged_consecutive_turns", "One?", "Two?\n\nThree?")]),
    Case("answers in a row", SHAREGPT,
         [conversations(("human", "One?"), ("gpt", "a"), ("gpt", "b"), ("human", "Two?"))],
         [keep("One?", "Two?")]),
    Case("padding", "HuggingFaceH4/ultrachat_200k",
         [messages(("user", "One?"), {"role": None, "content": None}, None)],
         [repair("none_padding_removed", "One?")]),
    Case("a stray entry", PERFECTBLEND, [conversations(3, ("human", "One?"))],
         [repair("bad_turn_skipped", "One?")]),
    Case("an empty last turn", PERFECTBLEND,
         [conversations(("human", "One?"), ("gpt", "a"), ("human", " \n"))],
         [repair("trailing_empty_turn_removed", "One?")]),
    Case("empty turns", PERFECTBLEND,
         [conversations(("human", ""), ("gpt", "Hello"), ("human", "One?")),
          conversations(("human", "One?"), ("gpt", "a"), ("human", None), ("gpt", "b"),
                        ("human", "Two?"))],
         [drop("empty_prompt")] * 2),
    Case("a name", GENERIC, [messages({"role": "user", "name": "bob", "content": "One?"}),
                             messages({"role": "user", "name": None, "content": "Two?"})],
         [repair("name_removed", "One?"), keep("Two?")]),
    Case("unknown roles", SHAREGPT,
         [conversations(("human", "One?"), ("moderator", "stop")),
          conversations({"value": "text of nobody"})],
         [drop("unknown_role")] * 2),
    Case("roles in capitals", INFINITY, [conversations(("Human", "One?"), ("GPT", "a"))],
         [keep("One?")]),
    Case("system in the middle", PERFECTBLEND,
         [conversations(("human", "One?"), ("system", "Be brief."), ("human", "Two?"))],
         [drop("system_not_first")]),
    Case("an empty system text in the middle", PERFECTBLEND,
         [conversations(("human", "One?"), ("gpt", "a"), ("system", ""), ("human", "Two?"))],
         [keep("One?", "Two?")]),
    Case("system in the middle of foreign ones", "open-thoughts/OpenThoughts-114k",
         [conversations(("user", "One?"), ("system", "Be brief."), ("user", "Two?"), system="S")],
         [drop("system_not_first")]),
    Case("system after an answer", SHAREGPT,
         [conversations(("gpt", "Hello"), ("system", "Be brief."), ("human", "One?"))],
         [repair("leading_assistant_stripped", "One?", system="Be brief.")]),
    Case("foreign system texts", "open-thoughts/OpenThoughts-114k",
         [conversations(("user", "1+1?"), ("assistant", "2"), system="Use <|begin_of_thought|>.")],
         [repair("foreign_system_removed", "1+1?")]),
    Case("no human", PERFECTBLEND, [conversations(("system", "S"), ("gpt", "a")),
                                    {"conversations": []}, {"source": "x"}],
         [drop("no_user_turn"), drop("no_messages"), drop("no_messages")]),
    Case("turns as text", GENERIC,
         [{"messages": json.dumps([{"role": "user", "content": "One?"}])},
          {"messages": "[{'role': 'user', 'content': 'Two?'}]"},
          {"messages": '[{"role": "us'}, {"messages": "plain words"}],
         [keep("One?", flags="json_string_decoded"), keep("Two?", flags="json_string_decoded"),
          drop("bad_inner_json"), drop("bad_inner_json")]),
    Case("content that is no text", INFINITY, [conversations(("human", 7))], [drop("bad_content")]),
    Case("nothing said", SHAREGPT,
         [conversations(("human", text)) for text in ("Continue.", "go on", "继续", "...", "👍👍")],
         [drop("contentless_prompt")] * 4 + [keep("👍👍")]),
    Case("placeholders", "nvidia/OpenCodeReasoning",
         [{"id": "a", "input": text} for text in ("-", "N/A", "", None, "--- a diff, please")],
         [drop("placeholder_prompt")] * 2 + [drop("empty_prompt")] * 2
         + [keep("--- a diff, please")]),
    Case("a chunk that begins one", SHAREGPT,
         [conversations(("human", "One?"), id="a_0"), conversations(("human", "Two?"), id="a_3")],
         [keep("One?"), keep("Two?", flags="chunk_continuation")]),
]  # fmt: skip

AGENTIC = [
    Case("issues", SWE_AGENT,
         [swe_agent(ISSUE.format("One")), swe_agent(ISSUE.format(" \n"), "b"),
          swe_agent("README.md", "c"), swe_agent("", "d"), swe_agent(ISSUE.format("ONE"), "e"),
          swe_agent(ISSUE.format("Two"), "a__b-1")],
         [repair("issue_extracted", "One"), drop("empty_prompt"), drop("no_issue_text"),
          drop("empty_prompt"), drop("duplicate"), drop("duplicate")]),
    Case("escaped thoughts in an answer", DEEPSWE,
         [messages(("system", "<function=x>"), ("user", "<github_issue>\nOne\n</github_issue>"),
                   ("assistant", "&lt;think&gt;a"))],
         [repair("issue_extracted", "One", flags="issue_extracted not_target_native")]),
    Case("traces", OPEN_SWE,
         [openhands("<issue_description>One</issue_description>", resolved=-1, language="go",
                    tools=[json.dumps(tool("run"))]),
          openhands("fix it", instance_id="c", tools=[]), openhands(None, instance_id="d")],
         [repair("issue_extracted", "One", tools="run"), drop("no_issue_text"),
          drop("empty_prompt")]),
    Case("padded tools and calls", OPENHANDS,
         [openhands("<issue_description>One</issue_description>",
                    tools=[tool("run", command={"type": "string"}, path=None)]),
          openhands("Fix the build", instance_id="b", tools=[tool("run")],
                    trajectory=messages(("user", "Fix the build"), {
                        "role": "assistant", "content": None, "tool_calls": [CALL]})["messages"])],
         [repair("none_padding_removed", "One", tools="run",
                 flags="issue_extracted none_padding_removed"),
          repair("none_padding_removed", "Fix the build", tools="run")]),
    Case("calls of unknown tools", NEMOTRON,
         [messages(("user", "Fix the build"),
                   {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}),
          messages(("user", "Just tell me why"), ("assistant", "So."))],
         [repair("tools_missing", "Fix the build"), keep("Just tell me why")]),
    Case("statements", REBENCH,
         [{"instance_id": "a", "problem_statement": "One", "language": "go"},
          {"instance_id": "a", "problem_statement": "Two", "language": "go"},
          {"instance_id": "b", "problem_statement": " \n", "language": "go"}],
         [keep("One"), drop("duplicate"), drop("empty_prompt")]),
    Case("statements of made-up bugs", SMITH,
         [{"instance_id": "a", "problem_statement": None},
          {"instance_id": "b", "problem_statement": "One\r\ntwo"}],
         [drop("empty_prompt"), repair("newlines_normalised", "One\ntwo")]),
    Case("runs as text", SMITH_RUNS,
         [{"instance_id": "a", "messages": json.dumps(
             messages(("user", "<pr_description>\nOne\n</pr_description>"))["messages"])},
          {"instance_id": "b", "messages": '[{"role": "user", "content": "<pr_desc'},
          {"instance_id": "c", "messages": "[]"}],
         [repair("issue_extracted", "One", flags="issue_extracted json_string_decoded"),
          drop("bad_inner_json"), drop("no_messages")]),
    Case("scores", "nvidia/OpenCodeInstruct",
         [{"input": f"Sort {score}", "average_test_score": score}
          for score in (1, "0.2", "x", None)],
         [keep("Sort 1"), drop("filtered"), keep("Sort x"), keep("Sort None")]),
    Case("reviews", REVIEW,
         [{"before_code": "# a\n```\nx\n```\n", "file_path": None, "language": "Markdown"},
          {"before_code": " \n", "file_path": "a.py", "language": "Python"},
          {"before_code": None}],
         [repair("prompt_templated", "Review the following Markdown code and point out concrete "
                 "problems.\n\n````markdown\n# a\n```\nx\n```\n````"),
          drop("empty_prompt"), drop("empty_prompt")]),
]  # fmt: skip

TOOLS = [
    Case("tools in several forms", GENERIC,
         [messages(("user", "Run one"), tools=[{"name": "f"}, json.dumps({"name": "g"})]),
          messages(("user", "Run two"), tools="[]"),
          messages(("user", "Run three"), tools="[{'name': 'f', 'parameters': {'type': 'dict'}}]"),
          messages(("user", "Run four"), tools="[{"),
          messages(("user", "Run five"), tools=[{"a": 1}])],
         [keep("Run one", tools="f g"), keep("Run two"),
          repair("tool_schema_converted", "Run three", tools="f"), drop("bad_inner_json"),
          drop("bad_inner_json")]),
    Case("calls as a list and as text", GENERIC,
         [messages(("user", f"Book {time}"), {"role": "assistant", "content": None,
                   "tool_calls": calls}, tools=None)
          for time, calls in (("9:30", '[{"id": "x"}]'), ("930", [{"id": "x"}]))],
         [keep("Book 9:30"), keep("Book 930")]),
    Case("Python's types", XLAM,
         [{"id": 1, "query": "Sum up", "answers": "[]",
           "tools": json.dumps([{"name": "f", "parameters": XLAM_TYPES}])},
          {"id": 2, "query": "Nothing to call", "answers": "[]", "tools": "[]"},
          {"id": 3, "query": "Broken", "answers": "[]", "tools": '[{"name": "f"'}],
         [repair("tool_schema_converted", "Sum up", tools="f"), keep("Nothing to call"),
          drop("bad_inner_json")]),
    Case("declared tools", TOUCAN,
         [toucan(("system", DECLARED), ("user", "Where?"),
                 available_tools=json.dumps([tool("geo")])),
          toucan(("system", f"{DECLARED}<|im_system|>system<|im_middle|>Be brief.<|im_end|>"),
                 ("user", "Where to?"), available_tools=None),
          toucan(("system", DECLARED.replace("]<", "<")), ("user", "Where is it?"))],
         [repair("tool_declare_parsed", "Where?", tools="geo",
                 flags="json_string_decoded tool_declare_parsed"),
          repair("tool_declare_parsed", "Where to?", tools="geo", system="Be brief.",
                 flags="json_string_decoded tool_declare_parsed"),
          drop("bad_inner_json")]),
    Case("calls in Python", TOUCAN,
         [toucan(("user", "Where?"), ("tool_call", "{'name': 'geo', 'arguments': '{}'}"),
                 ("tool_response", "45"), ("assistant", "There."), tools=json.dumps([tool("geo")])),
          {"uuid": "u", "messages": "[{'role': 'user', 'content': \"Who's there?\"}]",
           "tools": "[{'name': 'geo'}]"}],
         [keep("Where?", tools="geo", flags="json_string_decoded"),
          keep("Who's there?", tools="geo", flags="json_string_decoded")]),
    Case("tools as a list", LAMBDA,
         [conversations(("system", "Call functions."), ("human", "Write a.py"), tools=[tool("w")]),
          conversations(("human", "Write b.py"), ("gpt", "<think>"),
                        tools=json.dumps([tool("w")]))],
         [repair("foreign_tool_prompt_removed", "Write a.py", tools="w",
                 flags="foreign_tool_prompt_removed not_target_native"),
          repair("not_target_native", "Write b.py", tools="w")]),
    Case("tools in the system text alone", HERMES,
         [conversations(("system", f"In <tools></tools>. <tools>{json.dumps([tool('s')])}</tools>"),
                        ("human", "Stock?"), tools=None),
          conversations(("system", "Answer in this JSON schema: <schema>{}</schema>"),
                        ("human", "A name"), ("gpt", "{}"), tools=None)],
         [repair("foreign_tool_prompt_removed", "Stock?", tools="s"),
          keep("A name", system="Answer in this JSON schema: <schema>{}</schema>")]),
    Case("no functions", GLAIVE,
         [glaive(NO_FUNCTIONS, "USER: One?\n\n\nASSISTANT: a <|endoftext|>\n\n\nASSISTANT: b"
                 " <|endoftext|>\n\n\nUSER: Say USER: twice\n\nUSER: inside"),
          glaive(FUNCTIONS + '{"name": "f", "parameters": {', "USER: Two?"),
          glaive(FUNCTIONS + '{"name": "f"}\n{"name": "g"}', "ASSISTANT: hello"), glaive("", "")],
         [repair("glaive_chat_split", "One?", "Say USER: twice\n\nUSER: inside"),
          drop("bad_inner_json"), drop("no_user_turn"), drop("no_messages")]),
]  # fmt: skip

REDACTED = wild(("user", "Write to Ann"), ("assistant", "ok"))
REDACTED["conversation"][0]["redacted"] = True
TOXIC = wild(("user", "A bad word"), ("assistant", "no"))
TOXIC["conversation"][0]["toxic"] = True

CHAT = [
    Case("marks of one turn", WILDCHAT,
         [REDACTED, TOXIC, wild(("user", "Dear <PRESIDIO_ANONYMIZED_PERSON>, hello"))],
         [drop("redacted"), drop("toxic"), drop("redacted")]),
    Case("other languages", WILDCHAT,
         [wild(("user", "写一首关于灯塔的诗"), ("assistant", "…"), language="Chinese")],
         [keep("写一首关于灯塔的诗")]),
    Case("prompt column beside the turns", "HuggingFaceH4/ultrachat_200k",
         [messages(("user", "From the turns"), prompt="From the column")],
         [keep("From the turns")]),
    Case("one question", "Magpie-Align/Magpie-Qwen2.5-Pro-1M-v0.1",
         [{"uuid": "u", "instruction": "Name a tree", "response": None}], [keep("Name a tree")]),
    Case("thoughts", "open-r1/Mixture-of-Thoughts",
         [messages(("user", "Why is the sky blue?"), ("assistant", "<think>\nhm\n</think>\nSo."))],
         [keep("Why is the sky blue?")]),
]  # fmt: skip

CASES = [*TEXT, *TURNS, *AGENTIC, *TOOLS, *CHAT]
