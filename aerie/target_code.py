"""Code that a target's checkpoint brings: it runs by explicit configuration alone, and never from
elsewhere.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aerie.errors import ConfigError
from aerie.files import read_json


def check_code(folder: Path, trusted: bool) -> None:
    """Refuse a tokenizer that is code unless it may run: without it transformers would make one of
    the vocabulary alone, which splits some texts otherwise and says nothing.
    """
    maps = {name: _auto_map(folder / name) for name in ("config.json", "tokenizer_config.json")}
    for name, own in maps.items():
        # `OWNER/NAME--module.Class`: transformers would fetch it, at whatever commit it is at.
        if elsewhere := [place for place in _places(own) if "--" in place]:
            raise ConfigError(
                "the target names code that is in another repository",
                saw=f"auto_map {elsewhere[0]} in {name}",
                expected="code in the checkpoint's own folder, which the target's revision covers",
                remedy="copy that code into the folder at a commit that you have read, and name "
                f"it in {name} without `OWNER/NAME--`",
            )
    own = maps["tokenizer_config.json"]
    if "AutoTokenizer" in own and not trusted and not (folder / "tokenizer.json").exists():
        raise ConfigError(
            "the target's tokenizer is code that the checkpoint brings, and it may not run",
            saw=f"auto_map {own['AutoTokenizer']} in tokenizer_config.json",
            expected="tokenizer.json, or `target.trust_remote_code: true`",
            remedy="read that code in the checkpoint's folder, then allow it",
        )


def _auto_map(file: Path) -> dict[str, Any]:
    content = read_json(file) if file.exists() else {}
    return (content.get("auto_map") if isinstance(content, dict) else None) or {}


def _places(value: Any) -> Iterator[str]:
    """Every text inside an `auto_map`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _places(each)
