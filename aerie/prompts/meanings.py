"""What each reason and each flag says, in words; docs/prompts.md prints the same."""

from aerie.contracts.prompts import Flag, Reason

# "The row ..."
REASONS = {
    Reason.BAD_JSON: "is a line that is not JSON",
    Reason.NOT_AN_OBJECT: "is JSON, and not an object",
    Reason.BAD_CONTENT: "holds something else where text belongs",
    Reason.BAD_INNER_JSON: "holds turns or tools as a string that cannot be read, or tools that "
    "cannot be JSON Schema",
    Reason.NO_MESSAGES: "has no turns",
    Reason.NO_USER_TURN: "has turns, none by a user",
    Reason.UNKNOWN_ROLE: "has a role that no template knows",
    Reason.SYSTEM_NOT_FIRST: "has a system turn in mid-conversation",
    Reason.MULTIMODAL: "has a content part that is not text",
    Reason.EMPTY_PROMPT: "has an empty user turn that is not the last",
    Reason.CONTENTLESS_PROMPT: 'begins with "continue", "ok", "?"',
    Reason.PLACEHOLDER_PROMPT: 'begins with "-", "N/A", "null"',
    Reason.NO_ISSUE_TEXT: "has no issue where the dataset's other rows have it",
    Reason.FILTERED: "is below the adapter's quality bar",
    Reason.REDACTED: "has names in it that were replaced by placeholders",
    Reason.TOXIC: "is marked as toxic by the dataset",
    Reason.REFUSED_BY_TEMPLATE: "is refused by the target's chat template, such as for its system "
    "text",
    Reason.SPECIAL_TOKEN_IN_TEXT: "holds text that a tokenizer reads as a control token: any "
    "special token of the target, and the markers of ChatML and Kimi",
    Reason.PROMPT_TOO_LONG: "has more tokens than `max_tokens`; nothing is ever cut in the middle",
    Reason.DUPLICATE: "has the text of another candidate, here or in an earlier dataset",
    Reason.NEAR_DUPLICATE: "has nearly the text of another candidate",
    Reason.BENCHMARK_OVERLAP: "has 13 words in a row in common with a benchmark",
}

FLAGS = {
    Flag.NONE_PADDING_REMOVED: "nulls that only fill up an Arrow table were removed",
    Flag.TOOL_DECLARE_PARSED: "tools were read from a system text as Kimi's template renders it",
    Flag.GLAIVE_CHAT_SPLIT: "one text was split into turns, and tools were read from another",
    Flag.PROMPT_TEMPLATED: "the question was made from columns that hold no question",
    Flag.ISSUE_EXTRACTED: "the issue was taken out of the text of another agent",
    Flag.FOREIGN_TOOL_PROMPT_REMOVED: "a system text that teaches another tool syntax was removed",
    Flag.FOREIGN_SYSTEM_REMOVED: "a system text that teaches another model's format was removed",
    Flag.TOOL_SCHEMA_CONVERTED: "parameters of tools were converted to JSON Schema",
    Flag.TOOLS_MISSING: "tools are called that the row does not describe",
    Flag.LEADING_ASSISTANT_STRIPPED: "answers before the first question were removed",
    Flag.MERGED_CONSECUTIVE_TURNS: "turns in a row by one speaker became one",
    Flag.TRAILING_EMPTY_TURN_REMOVED: "an empty last user turn was removed",
    Flag.BAD_TURN_SKIPPED: "an entry among the turns that is no turn was skipped",
    Flag.NAME_REMOVED: "the name of a user was removed: templates put it in place of the role",
    Flag.CONTENT_PARTS_JOINED: "parts of text became one text",
    Flag.BOM_REMOVED: "a byte order mark before the row was removed",
    Flag.LONE_SURROGATE_REPLACED: "half a UTF-16 pair became U+FFFD",
    Flag.CONTROL_CHARS_REMOVED: "C0 control characters were removed, tab and line feed apart",
    Flag.NEWLINES_NORMALISED: "carriage returns became line feeds",
    Flag.NOT_TARGET_NATIVE: "its answers are of another model than the target, or another protocol",
    Flag.JSON_STRING_DECODED: "turns or parts were JSON in a string",
    Flag.CHUNK_CONTINUATION: "it is a later piece of a longer conversation",
    Flag.LOOKS_LIKE_STRINGIFIED_PARTS: "text looks like a list of parts; it was left alone",
    Flag.LATER_TURNS_DROPPED: "user turns after `max_turns` were left out",
}


def meaning(name: str) -> str:
    """The words for a reason or a flag, by its value; none for what is neither."""
    every = (*REASONS.items(), *FLAGS.items())
    return next((words for known, words in every if known == name), "")
