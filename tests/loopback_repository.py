"""What the loopback Hub serves: datasets with commits, and how the Hub's JSON describes them."""

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

LFS_SUFFIXES = (".parquet", ".jsonl", ".gz", ".zst")


@dataclass
class Repository:
    """A dataset: its commits, and in `info` what the Hub says about it (likes, tags, cardData)."""

    id: str
    gated: Literal["auto", "manual", False] = False
    info: dict[str, Any] = field(default_factory=dict)
    readers: set[str] = field(default_factory=set)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Make `files` the whole content of a branch; the new commit."""
        parts = [self.id, self.branches.get(branch, ""), str(len(self.commits))]
        parts += [f"{name} {sha256(files[name])}" for name in sorted(files)]
        commit = hashlib.sha1("\n".join(parts).encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.branches[branch] = commit
        return commit

    def find(self, revision: str) -> str | None:
        """The commit that a branch or a commit names."""
        commit = self.branches.get(revision, revision)
        return commit if commit in self.commits else None

    def document(self, commit: str, blobs: bool) -> dict[str, Any]:
        """What `/api/datasets/{id}/revision/{commit}` answers."""
        return {
            "_id": hashlib.sha1(self.id.encode()).hexdigest()[:24],
            "id": self.id,
            "author": self.id.split("/")[0],
            "sha": commit,
            "lastModified": "2026-01-02T03:04:05.000Z",
            "createdAt": "2025-01-02T03:04:05.000Z",
            "private": False,
            "gated": self.gated,
            "disabled": False,
            "tags": [],
            "description": "",
            "downloads": 0,
            "likes": 0,
            "trendingScore": 0,
            "cardData": {},
            "usedStorage": sum(map(len, self.commits[commit].values())),
            **self.info,
            "siblings": [
                _sibling(name, content, blobs)
                for name, content in sorted(self.commits[commit].items())
            ],
        }


def _sibling(name: str, content: bytes, blobs: bool) -> dict[str, Any]:
    if not blobs:
        return {"rfilename": name}
    result: dict[str, Any] = {"rfilename": name, "size": len(content)}
    result["blobId"] = oid_of(name, content)
    if name.endswith(LFS_SUFFIXES):
        size = {"size": len(content), "pointerSize": len(_pointer(content))}
        result["lfs"] = {"sha256": sha256(content), **size}
    return result


def entries_of(files: dict[str, bytes], folder: str, recursive: bool) -> Iterator[dict[str, Any]]:
    """What the tree of a folder lists."""
    prefix = f"{folder}/" if folder else ""
    folders: set[str] = set()
    for name, content in sorted(files.items()):
        if not name.startswith(prefix):
            continue
        parents = name.removeprefix(prefix).split("/")[:-1]
        for depth in range(1, len(parents) + 1 if recursive else min(len(parents), 1) + 1):
            path = prefix + "/".join(parents[:depth])
            if path not in folders:
                folders.add(path)
                oid = hashlib.sha1(path.encode()).hexdigest()
                yield {"type": "directory", "oid": oid, "size": 0, "path": path}
        if recursive or not parents:
            entry: dict[str, Any] = {"type": "file", "oid": oid_of(name, content), "path": name}
            entry["size"] = len(content)
            if name.endswith(LFS_SUFFIXES):
                size = {"size": len(content), "pointerSize": len(_pointer(content))}
                entry["lfs"] = {"oid": sha256(content), **size}
            yield entry


@functools.lru_cache(maxsize=256)
def sha256(content: bytes) -> str:
    """Digest of a content, which is its name under LFS."""
    return hashlib.sha256(content).hexdigest()


@functools.lru_cache(maxsize=256)
def oid_of(name: str, content: bytes) -> str:
    """The git object of a file: of its pointer, if it is under LFS."""
    blob = _pointer(content) if name.endswith(LFS_SUFFIXES) else content
    return hashlib.sha1(b"blob %d\0" % len(blob) + blob).hexdigest()


def _pointer(content: bytes) -> bytes:
    version = "version https://git-lfs.github.com/spec/v1"
    return f"{version}\noid sha256:{sha256(content)}\nsize {len(content)}\n".encode()
