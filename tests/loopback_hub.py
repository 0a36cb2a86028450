"""A Hub on loopback: real HTTP in the layout of the Hugging Face Hub, for the real client.

It serves what huggingface_hub 2.4.0 asks of datasets: the listing with its pages, information with
sizes and digests, trees, files with ranges. Files under LFS are redirected to another host, as the
Hub does it, which refuses a token. Faults are ordered beforehand and every request is recorded.
"""

import json
import re
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.loopback_repository import LFS_SUFFIXES, Repository, entries_of, oid_of, sha256

_LISTED = (
    "_id", "id", "author", "gated", "lastModified", "likes", "private", "sha", "createdAt",
    "downloads", "tags", "description", "trendingScore", "disabled",
)  # fmt: skip


@dataclass
class Request:
    """What one request asked for, and what it got: `sent` counts bytes of the body."""

    method: str
    path: str
    query: dict[str, list[str]]
    range: str | None
    authorised: bool
    status: int = 0
    sent: int = 0


@dataclass
class Fault:
    """What happens to the next `left` requests whose path matches, after `skip` that pass.

    `status`: answers with it. `drop`: closes without an answer. `cut`: closes in mid-body.
    `hold`: sets `reached` and waits for `release`.
    """

    kind: Literal["status", "drop", "cut", "hold"]
    match: str = "."
    left: int = 1
    skip: int = 0
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


class LoopbackHub:
    """The Hub. Use it as a context manager; `url` is what HF_ENDPOINT names.

    `page` is the most that a listing shows at once; without `ranges` whole files are sent.
    """

    def __init__(self, page: int = 100) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.page = page
        self.ranges = True
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        # Another origin than `url`, so that a client has to leave its token behind.
        self.cdn = f"http://localhost:{self.port}"

    def __enter__(self) -> "LoopbackHub":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for fault in self.faults:
            fault.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, id: str, files: dict[str, bytes] | None = None, **fields: Any) -> Repository:
        """Add a dataset with one commit; `fields` are those of `Repository`."""
        repository = self.repositories[id] = Repository(id, **fields)
        repository.commit(files or {})
        return repository

    def add_folder(self, id: str, folder: Path, **fields: Any) -> Repository:
        """Add a dataset with the files of a folder."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        return self.add(id, files, **fields)

    def fault(self, kind: Literal["status", "drop", "cut", "hold"], **fields: Any) -> Fault:
        """Order a fault; `fields` are those of `Fault`."""
        fault = Fault(kind, **fields)
        with self._lock:
            self.faults.append(fault)
        return fault

    def fail(self, count: int, status: int = 503, match: str = ".", **headers: str) -> Fault:
        """The next `count` matching requests get `status`, with `headers` (`retry_after="1"`)."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.fault("status", left=count, status=status, match=match, headers=named)

    def due(self, path: str) -> Fault | None:
        """The fault of a request, counted down."""
        with self._lock:
            for fault in self.faults:
                if fault.left and re.search(fault.match, path):
                    if fault.skip:
                        fault.skip -= 1
                        return None
                    fault.left -= 1
                    return fault
        return None

    def sent(self, match: str = ".") -> int:
        """Bytes of all bodies that went out for matching paths."""
        return sum(one.sent for one in self.requests if re.search(match, one.path))

    def blob(self, digest: str) -> bytes | None:
        """The content behind a digest of LFS."""
        for repository in self.repositories.values():
            for files in repository.commits.values():
                for content in files.values():
                    if sha256(content) == digest:
                        return content
        return None

    def search(self, query: dict[str, list[str]]) -> list[Repository]:
        """Datasets that a listing names, in its order."""
        found = [
            one
            for one in self.repositories.values()
            if all(word.lower() in one.id.lower() for word in query.get("search", []))
            and all(tag in one.info.get("tags", []) for tag in query.get("filter", []))
            and query.get("author", [one.id.split("/")[0]]) == [one.id.split("/")[0]]
        ]
        key = query.get("sort", ["trendingScore"])[0]

        def weight(one: Repository) -> tuple[Any, str]:
            return one.document(one.branches["main"], False)[key], one.id

        return sorted(found, key=weight, reverse=query.get("direction", ["-1"]) == ["-1"])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: LoopbackHub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is what some tests are about; anything else is a fault."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    _request: Request
    _cut: bool

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are recorded instead."""

    def _serve(self) -> None:
        address = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        self._form = parse_qs(self.rfile.read(length).decode()) if length else {}
        path, query = unquote(address.path), parse_qs(address.query)
        authorised = "Authorization" in self.headers
        self._request = Request(self.command, path, query, self.headers.get("Range"), authorised)
        self.server.hub.requests.append(self._request)
        fault = self.server.hub.due(path)
        self._cut = fault is not None and fault.kind == "cut"
        if fault and fault.kind == "status":
            self._error(fault.status, "", "ordered by the test", fault.headers)
            return
        if fault and fault.kind == "drop":
            self.close_connection = True
            return
        if fault and fault.kind == "hold":
            fault.reached.set()
            fault.release.wait(60)
        for pattern, answer in _ROUTES:
            if found := re.fullmatch(pattern, path):
                answer(self, query, **found.groupdict())
                return
        self._error(404, "", "Sorry, we can't find the page you are looking for.")

    # Answers, one for each endpoint.

    def _listing(self, query: dict[str, list[str]]) -> None:
        found = self.server.hub.search(query)
        start = int(query.get("cursor", ["0"])[0])
        size = min(int(query.get("limit", ["1000"])[0]), self.server.hub.page)
        shown = [
            _selected(one.document(one.branches["main"], False), query)
            for one in found[start : start + size]
        ]
        self._json(shown, self._next(query, start + size) if start + size < len(found) else {})

    def _info(self, query: dict[str, list[str]], id: str, revision: str = "main") -> None:
        if (found := self._commit(id, revision)) is None:
            return
        repository, commit = found
        document = repository.document(commit, "blobs" in query)
        if wanted := query.get("expand"):
            document = {key: document[key] for key in ("_id", "id", *wanted) if key in document}
        self._json(document)

    def _tree(
        self, query: dict[str, list[str]], id: str, revision: str, folder: str | None = None
    ) -> None:
        if (found := self._commit(id, revision)) is None:
            return
        repository, commit = found
        recursive = query.get("recursive", ["false"])[0].lower() == "true"
        entries = list(entries_of(repository.commits[commit], folder or "", recursive))
        if folder and not entries:
            return self._error(404, "EntryNotFound", f"{folder} does not exist on {revision!r}")
        start, size = int(query.get("cursor", ["0"])[0]), self.server.hub.page
        more = self._next(query, start + size) if start + size < len(entries) else {}
        self._json(entries[start : start + size], more)

    def _paths(self, query: dict[str, list[str]], id: str, revision: str) -> None:
        if (found := self._commit(id, revision)) is None:
            return
        repository, commit = found
        entries = entries_of(repository.commits[commit], "", True)
        self._json([entry for entry in entries if entry["path"] in self._form["paths"]])

    def _resolve(self, query: dict[str, list[str]], id: str, revision: str, name: str) -> None:
        found = self._commit(id, revision, content=True)
        if found is None:
            return
        repository, commit = found
        content = repository.commits[commit].get(name)
        header = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if content is None:
            return self._error(404, "EntryNotFound", "Entry not found", header)
        if not name.endswith(LFS_SUFFIXES):
            return self._content(content, header | {"ETag": f'"{oid_of(name, content)}"'})
        digest = sha256(content)
        header |= {
            "Location": f"{self.server.hub.cdn}/cdn/{digest}?Signature=secret",
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": f'"{digest}"',
        }
        self._send(302, b"Found", header)

    def _auth_check(self, query: dict[str, list[str]], id: str) -> None:
        if self._commit(id, "main", content=True):
            self._json({})

    def _blob(self, query: dict[str, list[str]], digest: str) -> None:
        content = self.server.hub.blob(digest)
        if self._request.authorised:
            return self._error(400, "", "Only one auth mechanism allowed")
        if content is None or query.get("Signature") != ["secret"]:
            return self._error(403, "", "Access denied")
        self._content(content, {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"})

    # What they are made of.

    def _commit(
        self, id: str, revision: str, content: bool = False
    ) -> tuple[Repository, str] | None:
        """The dataset and the commit that are asked for, unless an error was sent."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        repository = self.server.hub.repositories.get(id)
        if repository is None:
            message = "Repository not found" if token else "Invalid username or password."
            self._error(404 if token else 401, "RepoNotFound", message)
            return None
        if content and repository.gated and token not in repository.readers:
            message = f"Access to dataset {id} is restricted."
            self._error(403 if token else 401, "GatedRepo", message)
            return None
        commit = repository.find(revision)
        if commit is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, commit

    def _next(self, query: dict[str, list[str]], cursor: int) -> dict[str, str]:
        words = [(key, value) for key, values in query.items() for value in values]
        words = [(key, value) for key, value in words if key != "cursor"]
        text = "&".join(f"{key}={quote(value)}" for key, value in [*words, ("cursor", str(cursor))])
        path = urlsplit(self.path).path
        return {"Link": f'<{self.server.hub.url}{path}?{text}>; rel="next"'}

    def _content(self, content: bytes, headers: dict[str, str]) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self._request.range or "")
        if not wanted or not self.server.hub.ranges:
            return self._send(200, content, headers)
        start = int(wanted[1])
        end = min(int(wanted[2] or len(content) - 1), len(content) - 1)
        if start >= len(content):
            return self._error(416, "", "out of range")
        headers = {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
        return self._send(206, content[start : end + 1], headers)

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        kind = {"Content-Type": "application/json; charset=utf-8"}
        self._send(200, json.dumps(value).encode(), kind | (headers or {}))

    def _error(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        named = {"X-Error-Code": code, "X-Error-Message": message} if code else {}
        body = json.dumps({"error": message}).encode()
        self._send(status, body, {"Content-Type": "application/json"} | named | (headers or {}))

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._request.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self._cut:
            body, self.close_connection = body[: len(body) // 2], True
        self.wfile.write(body)
        self._request.sent += len(body)


_ID = r"(?P<id>[\w.-]+/[\w.-]+)"
_REVISION = r"(?P<revision>[^/]+)"
_ROUTES: list[tuple[str, Any]] = [
    (r"/api/datasets", _Handler._listing),
    (rf"/api/datasets/{_ID}", _Handler._info),
    (rf"/api/datasets/{_ID}/revision/{_REVISION}", _Handler._info),
    (rf"/api/datasets/{_ID}/tree/{_REVISION}(?:/(?P<folder>.+))?", _Handler._tree),
    (rf"/api/datasets/{_ID}/auth-check", _Handler._auth_check),
    (rf"/api/datasets/{_ID}/paths-info/{_REVISION}", _Handler._paths),
    (rf"/datasets/{_ID}/resolve/{_REVISION}/(?P<name>.+)", _Handler._resolve),
    (r"/cdn/(?P<digest>\w+)", _Handler._blob),
]


def _selected(document: dict[str, Any], query: dict[str, list[str]]) -> dict[str, Any]:
    """The fields of a dataset that a listing shows."""
    if wanted := query.get("expand"):
        names: tuple[str, ...] = ("_id", "id", *wanted)
    else:
        full = query.get("full", ["false"])[0].lower() == "true"
        names = (*_LISTED, "cardData", "siblings") if full else _LISTED
    return {name: document[name] for name in names if name in document}
