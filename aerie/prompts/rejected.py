"""The one way in which a row does not become a prompt."""

from aerie.contracts.prompts import Reason


class Rejected(Exception):
    """A row that does not become a prompt. Raised and caught inside this package."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail
