"""Typed errors. Every one says what is wrong, what was seen, what was expected and the remedy."""


class AerieError(Exception):
    """Base of all errors that Aerie raises on purpose.

    `what` names the file, field or step; the other parts may be left out where they add nothing.
    """

    kind = "error"

    def __init__(
        self,
        what: str,
        *,
        saw: object | None = None,
        expected: object | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what, self.saw, self.expected, self.remedy = what, saw, expected, remedy
        lines = [f"{self.kind}: {what}"]
        for label, value in (("saw", saw), ("expected", expected), ("remedy", remedy)):
            if value is not None:
                lines.append(f"  {label + ':':<10}{value}")
        super().__init__("\n".join(lines))


class ConfigError(AerieError):
    """The configuration does not say something that can be built."""

    kind = "configuration"


class DataError(AerieError):
    """An input file is missing, damaged or not in the schema that its adapter reads."""

    kind = "input"


class ContractError(AerieError):
    """An artifact is not what its contract promises: damaged, truncated or of another version."""

    kind = "artifact"


class EngineError(AerieError):
    """An engine cannot do what was asked of it."""

    kind = "engine"


class GateError(AerieError):
    """A gate stopped the build."""

    kind = "gate"

    def __init__(
        self,
        gate: str,
        what: str,
        *,
        saw: object | None = None,
        expected: object | None = None,
        remedy: str | None = None,
    ) -> None:
        self.gate = gate
        super().__init__(f"{gate}: {what}", saw=saw, expected=expected, remedy=remedy)
