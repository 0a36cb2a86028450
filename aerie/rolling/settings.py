"""The section `rolling` of the configuration.

It reaches jobs by the environment and is no param of a rule: which states are on the disk at a
time changes no draft.
"""

from aerie.section import Section, key

VARIABLE = "AERIE_ROLLING"


class RollingSettings(Section):
    """Training with states that do not fit on the disk all at once."""

    budget_bytes: int = key(
        ...,
        "bytes of states on the disk at a time, at most",
        "`make plan` says what fits, with the `shuffle_tokens` that goes with it",
        ge=1,
    )

    @classmethod
    def from_environment(cls) -> "RollingSettings":
        """The section that the workflow left in AERIE_ROLLING as JSON.

        Raises:
            ConfigError: it is not such a section.
        """
        return cls.from_variable(
            VARIABLE, "rolling", '{"budget_bytes": 2000000000000}', "docs/storage.md"
        )
