"""What a section of the configuration is made of."""

import json
import os
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from aerie.errors import ConfigError


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

    @classmethod
    def from_variable(cls, variable: str, name: str, example: str, page: str) -> Self:
        """The section `name` that the workflow left in the environment as JSON; defaults without.

        Raises:
            ConfigError: it is not such a section.
        """
        try:
            return cls.model_validate_json(os.environ.get(variable) or "{}")
        except ValidationError as error:
            raise ConfigError(
                f"{variable} in the environment is no section `{name}`",
                saw=error,
                expected=f"JSON such as {example}",
                remedy=f"{page} explains its keys",
            ) from error
