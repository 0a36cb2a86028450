"""What the scout asks of a Hub: listings, one dataset's information, ranges of one file."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2
from huggingface_hub import DatasetInfo, HfApi, constants
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

from aerie.errors import ConfigError, DataError
from aerie.hub.client import Hub, RangeReader, RemoteFile
from aerie.hub.retry import summary
from aerie.scout.listing import EXPAND, Listed


@dataclass(frozen=True)
class Client:
    """A Hub to be searched, by default the environment's."""

    hub: Hub = field(default_factory=Hub)

    @property
    def endpoint(self) -> str:
        """The Hub's address, without a name or password that it may carry."""
        parts = urlsplit(self.hub.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def search(self, label: str, limit: int, **query: Any) -> list[Listed]:
        """Datasets of a search, most downloaded first. `label` names the search for people.

        The real client tries a page again by itself.

        Raises:
            DataError: the Hub did not answer (`unanswered`), or refused the search.
        """
        api = HfApi(endpoint=self.hub.url)
        try:
            found = api.list_datasets(**query, sort="downloads", limit=limit, expand=EXPAND)
            return [Listed.of(info, label) for info in found if not info.disabled]
        except (HfHubHTTPError, httpx2.HTTPError) as error:
            raise DataError(
                f"the search {label} at {self.endpoint} failed",
                saw=summary(error),
                remedy="check the network, the proxy, HF_ENDPOINT and HF_TOKEN, "
                "then run `make scout` again: what was found is kept",
            ) from error

    def info(self, listed: Listed) -> DatasetInfo:
        """Card, tags and files with their sizes, at the commit that was listed.

        Raises:
            DataError: it cannot be had; the error says why.
        """

        def ask() -> DatasetInfo:
            api = HfApi(endpoint=self.hub.url)
            return api.dataset_info(listed.id, revision=listed.revision, files_metadata=True)

        return self.hub.call(listed.id, listed.revision, listed.id, ask)

    def open(self, listed: Listed, path: str, size: int) -> RangeReader:
        """A file of the commit that was listed. Its reads raise DataError."""
        return self.hub.open(listed.id, listed.revision, RemoteFile(path, size, ""))


def check_online() -> None:
    """Check that the Hub may be asked.

    Raises:
        ConfigError: the environment says to stay offline.
    """
    if constants.is_offline_mode():
        raise ConfigError(
            "the scout asks the Hub, and offline mode forbids it",
            saw="HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set",
            expected="a machine that reaches the Hub, or a mirror of it that HF_ENDPOINT names",
            remedy="unset it and run `make scout` again; nothing else needs the scout",
        )


def unanswered(error: DataError) -> bool:
    """Whether no answer came at all, so that another search would fail the same way."""
    return not isinstance(error.__cause__, HfHubHTTPError)


def refused(error: DataError) -> bool:
    """Whether the Hub knows the dataset and does not show its files to us."""
    return isinstance(error.__cause__, GatedRepoError)
