"""Requests to the Hub that are tried again: what passes by itself, when, and what is said of it.

huggingface_hub tries some of its requests again and others not at all, without jitter. So it is
asked for single requests here, and this is the one place that decides.
"""

import email.utils
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx2
import tenacity
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import parse_ratelimit_headers

from aerie.command import log

T = TypeVar("T")

_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class Incomplete(Exception):
    """A body that was not as long as it should be."""


@dataclass(frozen=True)
class Retry:
    """How often and how patiently a request is tried. Times are in seconds.

    The waits double from `first` to `longest`, each with up to `jitter` more, so that jobs that
    failed together do not return together. A server that says how long to wait is obeyed, up to
    `obey`.
    """

    tries: int = 8
    first: float = 1.0
    longest: float = 60.0
    jitter: float = 2.0
    obey: float = 600.0

    def call(self, what: str, request: Callable[[], T]) -> T:
        """The result of `request`, tried until it succeeds, fails for good, or `tries` are over.

        `what` names it in the log. The last error is raised as it is.
        """
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_transient),
            stop=tenacity.stop_after_attempt(self.tries),
            wait=self._wait,
            before_sleep=lambda state: self._say(what, state),
            reraise=True,
        ):
            with attempt:
                return request()
        raise RuntimeError("tenacity ends in a result or an error")

    def _wait(self, state: tenacity.RetryCallState) -> float:
        own = tenacity.wait_exponential_jitter(
            multiplier=self.first, max=self.longest, jitter=self.jitter
        )(state)
        error = state.outcome.exception() if state.outcome else None
        asked = wait_asked(error.response.headers) if isinstance(error, HfHubHTTPError) else None
        return own if asked is None else max(own, min(asked, self.obey))

    def _say(self, what: str, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        wait = state.next_action.sleep if state.next_action else 0.0
        log.warning(
            "%s: %s; try %d of %d in %.1f s",
            what,
            summary(error),
            state.attempt_number + 1,
            self.tries,
            wait,
        )


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _STATUS
    return isinstance(
        error,
        (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError, Incomplete),
    )


def wait_asked(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: its rate limit's reset, or Retry-After in either form."""
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    value = headers.get("retry-after", "").strip()
    if value.isdigit():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(moment.timestamp() - time.time(), 0.0)


def summary(error: BaseException | None) -> str:
    """An error in a few words. No address: those of the Hub's storage carry signatures."""
    if isinstance(error, HfHubHTTPError):
        return f"HTTP {error.response.status_code}"
    return f"{type(error).__name__}: {error}".rstrip(": ")
