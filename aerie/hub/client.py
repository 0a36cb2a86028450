"""The Hub as Aerie needs it: what a revision holds, and bytes of its files.

It is the real client's session, headers and addresses, so HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and
the proxies of the environment count. A token is sent to the Hub alone and never printed.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import httpx2
from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from aerie.errors import DataError
from aerie.hub.retry import Incomplete, Retry, is_transient, summary

T = TypeVar("T")

# Seconds between two packets. A large file takes as long as it takes.
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class RemoteFile:
    """A file of a commit. `digest` is its SHA-256 under LFS, else its git object (SHA-1)."""

    path: str
    bytes: int
    digest: str


@dataclass(frozen=True)
class Snapshot:
    """A dataset at one commit, and all files there."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True)
class Hub:
    """A Hub, by default the one that HF_ENDPOINT names or huggingface.co."""

    endpoint: str | None = None
    retry: Retry = field(default_factory=Retry)

    @property
    def url(self) -> str:
        """The address of the Hub."""
        return self.endpoint or constants.ENDPOINT

    @property
    def name(self) -> str:
        """The address for people, without a password that it may carry."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def snapshot(self, repo: str, revision: str) -> Snapshot:
        """What a branch, tag or commit of a dataset holds now.

        Raises:
            DataError: it cannot be had; the error says why and what to do.
        """

        def ask() -> Any:
            return HfApi(endpoint=self.url).dataset_info(
                repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S
            )

        info = self.call(repo, revision, f"files of {repo}", ask)
        files = [
            RemoteFile(one.rfilename, one.size, one.lfs.sha256 if one.lfs else one.blob_id)
            for one in info.siblings or ()
        ]
        for file in files:
            # They become local paths.
            if file.path.startswith("/") or ".." in file.path.split("/"):
                raise DataError(f"{repo} names a file outside itself", saw=file.path)
        return Snapshot(repo, info.sha, tuple(sorted(files, key=lambda file: file.path)))

    def read(self, repo: str, commit: str, file: RemoteFile, start: int, end: int) -> bytes:
        """Bytes `start` to `end` (exclusive) of a file.

        Raises:
            DataError: they cannot be had; the error says why and what to do.
        """
        url = hf_hub_url(repo, file.path, repo_type="dataset", revision=commit, endpoint=self.url)
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        headers["Range"] = f"bytes={start}-{end - 1}"

        def ask() -> bytes:
            response = get_session().get(url, headers=headers, timeout=_TIMEOUT_S)
            hf_raise_for_status(response)
            content = response.content
            # A server may ignore the range and send the whole file.
            if response.status_code == 200 and len(content) == file.bytes:
                content = content[start:end]
            if len(content) != end - start:
                raise Incomplete(f"{len(content):,} of {end - start:,} bytes arrived")
            return bytes(content)

        return self.call(repo, commit, file.path, ask) if end > start else b""

    def open(self, repo: str, commit: str, file: RemoteFile) -> "RangeReader":
        """A file to seek and read in, for readers that want parts of it."""
        return RangeReader(self, repo, commit, file)

    def call(self, repo: str, revision: str, what: str, request: Callable[[], T]) -> T:
        """The result of a request about a dataset, tried again where that helps.

        Raises:
            DataError: it failed for good; the error says why and what to do.
        """
        with self._explained(repo, revision):
            return self.retry.call(what, request)

    @contextmanager
    def _explained(self, repo: str, revision: str) -> Iterator[None]:
        page = f"{self.name}/datasets/{repo}"
        try:
            yield
        except OfflineModeIsEnabled as error:
            raise offline(repo) from error
        except GatedRepoError as error:
            raise DataError(
                f"{repo} is gated: the Hub gives its files to those who accepted its terms",
                saw=summary(error),
                remedy=f"accept the terms at {page}, then set HF_TOKEN to a token of that account",
            ) from error
        except RevisionNotFoundError as error:
            raise DataError(
                f"{repo} has no revision {revision!r}, or has it no more",
                saw=summary(error),
                expected=f"a branch, tag or commit listed at {page}/commits/main",
                remedy="set `revision` of the dataset in the configuration to one that is there",
            ) from error
        except RemoteEntryNotFoundError as error:
            raise DataError(
                f"{repo} lists a file at {revision} that it does not hold",
                saw=summary(error),
                remedy=f"look at {page}/tree/{revision}; set `revision` to a commit that is whole",
            ) from error
        except RepositoryNotFoundError as error:
            raise DataError(
                f"there is no dataset {repo} at {self.name}, or it is private",
                saw=summary(error),
                remedy="correct `repo` of the dataset, or give `path` if its files are there; "
                "for a private one set HF_TOKEN",
            ) from error
        except (HfHubHTTPError, httpx2.HTTPError, Incomplete) as error:
            raise self._failed(repo, error) from error

    def _failed(self, repo: str, error: Exception) -> DataError:
        if is_transient(error):
            return DataError(
                f"the Hub at {self.name} did not answer for {repo}",
                saw=f"{summary(error)}, after {self.retry.tries} tries",
                remedy="run the same command again when the Hub is reachable: what arrived is kept",
            )
        return DataError(
            f"the Hub at {self.name} refused a request about {repo}",
            saw=summary(error),
            remedy="check HF_ENDPOINT and, if it is set, that HF_TOKEN is valid",
        )


class RangeReader(io.RawIOBase):
    """A remote file that is read by ranges; nothing is read ahead and nothing is kept."""

    def __init__(self, hub: Hub, repo: str, commit: str, file: RemoteFile) -> None:
        super().__init__()
        self._hub, self._repo, self._commit, self._file = hub, repo, commit, file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.bytes}
        self._position = start[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def read(self, size: int | None = -1) -> bytes:
        """The next `size` bytes, all of them unless the file ends before."""
        left = max(self._file.bytes - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        start, self._position = self._position, self._position + count
        return self._hub.read(self._repo, self._commit, self._file, start, start + count)


def offline(repo: str) -> DataError:
    """The error of a download that offline mode forbids."""
    return DataError(
        f"{repo} is not here in full, and offline mode forbids to fetch it",
        saw="HF_HUB_OFFLINE is set",
        remedy="run once with HF_HUB_OFFLINE=0 on a machine that reaches the Hub; "
        "what it fetches serves offline builds from then on",
    )
