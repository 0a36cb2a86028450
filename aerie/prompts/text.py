"""Text as the target may see it, and the key under which two texts count as the same prompt."""

import functools
import re
import sys
import unicodedata

import xxhash

# Everything that `repair` changes: surrogates, carriage returns and the C0 controls but \t and \n.
_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f]")


def repair(text: str) -> tuple[str, set[str]]:
    """`text` fit for UTF-8 and for tokenizers, and the names of what was repaired.

    Halves of one UTF-16 pair are joined, lone ones become U+FFFD; line ends become \\n; other C0
    controls than \\t are removed. Everything else is content and stays.
    """
    flags: set[str] = set()
    if not _UNCLEAN.search(text):
        return text, flags
    if _SURROGATE.search(text):
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        text = _SURROGATE.sub("\ufffd", joined)
        if text != joined:
            flags.add("lone_surrogate_replaced")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        flags.add("newlines_normalised")
    cleaned = _CONTROL.sub("", text)
    if cleaned != text:
        flags.add("control_chars_removed")
    return cleaned, flags


def head(value: str, length: int = 200) -> str:
    """The beginning of `value`, on one line, for a person to recognise a row by."""
    text = " ".join(repair(value[: 2 * length])[0].split())
    return text if len(text) <= length else text[: length - 1] + "…"


def fold(text: str) -> str:
    """`text` without the differences that do not make another prompt.

    NFKC, case folding, no format characters (zero-width space, byte order mark), and one space for
    any run of white space.
    """
    if text.isascii():
        return " ".join(text.lower().split())
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_format_characters().sub("", folded).split())


def prompt_key(system: str | None, turns: list[str]) -> str:
    """The key of a prompt, as 32 hexadecimal digits; equal keys mean the same prompt."""
    return folded_key(fold(system or ""), "\n".join(map(fold, turns))).hex()


def folded_key(system: str, turns: str) -> bytes:
    """xxh3-128, 16 bytes, of a folded system text and of folded turns joined by line breaks."""
    # A folded text holds no line break, so that no two lists of texts join to the same bytes.
    joined = f"{system}\n{turns}".encode("utf-8", "surrogatepass")
    return xxhash.xxh3_128_digest(joined)


@functools.cache
def _format_characters() -> re.Pattern[str]:
    every = map(chr, range(sys.maxunicode + 1))
    return re.compile(f"[{''.join(c for c in every if unicodedata.category(c) == 'Cf')}]")
