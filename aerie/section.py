"""What a section of the configuration is made of."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue


def key(default: Any, description: str, remedy: str | None = None, **limits: Any) -> Any:
    """A key of a section: default (`...`: it must be given), meaning, what helps, limits."""
    extra: dict[str, JsonValue] = {"remedy": remedy} if remedy else {}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class Section(BaseModel):
    """A part of the configuration. Unknown keys are errors: a typo must not fall back silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def as_json(self) -> str:
        """The section with its defaults as canonical JSON: what a rule passes to its script."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)
