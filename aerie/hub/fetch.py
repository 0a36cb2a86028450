"""One dataset of the Hub becomes a folder: pinned to a commit, without what nobody reads of it.

    source.json    the sidecar, the declared output: repository, commit, files with digests
    files/         the files under their names in the repository
    pinned.json    the commit that the revision named when it was first asked for, and its files
    journal.json   what each file in files/ was made from

Everything but the sidecar stays when Snakemake removes the sidecar to make it anew, so a rerun asks
for what is missing alone and stays at the commit, also when the branch has moved on.
"""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fsspec.utils import glob_translate

from aerie.command import log
from aerie.contracts.sidecar import write_sidecar
from aerie.errors import DataError
from aerie.files import digest_file, digest_json, fsync_directory, read_json, write_sealed
from aerie.hub import columns
from aerie.hub.client import Hub, RemoteFile, Snapshot
from aerie.progress import Progress

SIDECAR, FILES = "source.json", "files"

_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class Wanted:
    """What is asked for: of which dataset, which files, and of Parquet files which columns."""

    repo: str
    revision: str
    patterns: tuple[str, ...]
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def of(self, files: tuple[RemoteFile, ...]) -> list[RemoteFile]:
        """The files that match, `*` within a folder and `**` across folders."""
        patterns = [re.compile(glob_translate(pattern)) for pattern in self.patterns]
        return [file for file in files if any(pattern.match(file.path) for pattern in patterns)]

    @property
    def kept(self) -> list[str]:
        """All columns, sorted: their order in an adapter, and which may lack, decides nothing."""
        return sorted({*self.columns, *self.optional})

    def key(self, file: RemoteFile) -> dict[str, Any]:
        """What decides the local content of a file."""
        return {
            "remote": file.digest,
            "columns": self.kept if _is_parquet(file) else None,
        }


def fetch(wanted: Wanted, folder: Path, hub: Hub | None = None) -> dict[str, Any]:
    """Bring the files of a dataset to `folder` and return the sidecar.

    Raises:
        DataError: the dataset cannot be had, has no such file or column, or the disk is full.
    """
    hub = hub or Hub()
    folder.mkdir(parents=True, exist_ok=True)
    with _disk(folder, wanted.repo, _BLOCK_BYTES):
        snapshot = _pinned(wanted, folder, hub)
    files = wanted.of(snapshot.files)
    if not files:
        names = [file.path for file in snapshot.files]
        raise DataError(
            f"{wanted.repo} at {snapshot.commit} has no file that is wanted",
            saw=", ".join(names[:8]) + (f" and {len(names) - 8} more" if names[8:] else ""),
            expected=" or ".join(wanted.patterns),
            remedy="correct `files` or `revision` of the dataset in the configuration",
        )
    Fetcher(wanted, snapshot, folder, hub).run(files)
    local = [folder / FILES / file.path for file in files]
    provenance = {
        "repo": wanted.repo,
        "revision": wanted.revision,
        "commit": snapshot.commit,
        "patterns": list(wanted.patterns),
        "columns": wanted.kept,
        "remote": {file.path: {"bytes": file.bytes, "digest": file.digest} for file in files},
    }
    counts = {"files": len(files), "bytes": sum(path.stat().st_size for path in local)}
    with _disk(folder, wanted.repo, _BLOCK_BYTES):
        return write_sidecar(folder / SIDECAR, "source", local, counts, provenance)


def _pinned(wanted: Wanted, folder: Path, hub: Hub) -> Snapshot:
    """The commit of an earlier run if it was asked for the same, else what the Hub says now."""
    path = folder / "pinned.json"
    asked = {"repo": wanted.repo, "revision": wanted.revision}
    if path.exists():
        known = read_json(path)
        if {key: known[key] for key in asked} == asked:
            files = tuple(RemoteFile(**file) for file in known["files"])
            return Snapshot(wanted.repo, known["commit"], files)
    snapshot = hub.snapshot(wanted.repo, wanted.revision)
    listed = [asdict(file) for file in snapshot.files]
    write_sealed(path, {**asked, "commit": snapshot.commit, "files": listed})
    log.info("%s: %s is commit %s", wanted.repo, wanted.revision, snapshot.commit)
    return snapshot


class Fetcher:
    """Makes `files/` hold what is wanted of a snapshot, and nothing else."""

    def __init__(self, wanted: Wanted, snapshot: Snapshot, folder: Path, hub: Hub) -> None:
        self.wanted, self.snapshot, self.folder, self.hub = wanted, snapshot, folder, hub
        self._partial = folder / ".partial"
        self._journal = folder / "journal.json"

    def run(self, files: list[RemoteFile]) -> None:
        """Keep what is right, fetch the rest.

        Raises:
            DataError: a file cannot be had, lacks a column, or the disk is full.
        """
        journal = self._keep(files)
        missing = [file for file in files if file.path not in journal]
        plans = [(file, self._plan(file)) for file in missing]
        need = sum(file.bytes if plan is None else plan.bytes for file, plan in plans)
        # A Parquet file is in pieces until it is whole.
        spare = max((plan.bytes for _, plan in plans if plan is not None), default=0)
        self._check_disk(need + spare - self._partial_bytes())
        repo = self.wanted.repo
        log.info("%s: %d files are here, %d to fetch", repo, len(journal), len(missing))
        with Progress(f"source {repo}", need, "bytes") as progress:
            for number, (file, plan) in enumerate(plans, start=1):
                log.info("file %d of %d: %s", number, len(plans), file.path)
                with _disk(self.folder, repo, need - progress.done):
                    self._fetch(file, plan, progress)
                    journal[file.path] = {**self.wanted.key(file), **_content(self._path(file))}
                    write_sealed(self._journal, journal)
        shutil.rmtree(self._partial, ignore_errors=True)

    def _keep(self, files: list[RemoteFile]) -> dict[str, Any]:
        """The journal of the files that are right; all others are removed."""
        known = read_json(self._journal) if self._journal.exists() else {}
        kept = {}
        for file in files:
            path, entry = self._path(file), known.get(file.path)
            if entry and path.is_file() and entry == {**self.wanted.key(file), **_content(path)}:
                kept[file.path] = entry
        there = self.folder / FILES
        for path in sorted(there.rglob("*")):
            if path.is_file() and path.relative_to(there).as_posix() not in kept:
                path.unlink()
        return kept

    def _plan(self, file: RemoteFile) -> columns.Projection | None:
        if not _is_parquet(file):
            return None
        wanted = self.wanted
        return columns.plan(self._open(file), self._name(file), wanted.columns, wanted.optional)

    def _fetch(self, file: RemoteFile, plan: columns.Projection | None, progress: Progress) -> None:
        self._path(file).parent.mkdir(parents=True, exist_ok=True)
        if plan is None:
            self._copy_whole(file, progress)
            return
        pieces = self._partial / digest_json(self.wanted.key(file))
        columns.copy(self._open(file), self._name(file), plan, pieces, self._path(file), progress)
        shutil.rmtree(pieces)

    def _copy_whole(self, file: RemoteFile, progress: Progress) -> None:
        partial = self._partial / file.digest
        partial.parent.mkdir(parents=True, exist_ok=True)
        # What a power cut left in the partial file may be wrong: then once more from the start.
        for _ in range(2):
            with partial.open("ab") as stream:
                if stream.tell() > file.bytes:
                    stream.truncate(0)
                progress.skip(stream.tell())
                while (start := stream.tell()) < file.bytes:
                    end = min(start + _BLOCK_BYTES, file.bytes)
                    snapshot = self.snapshot
                    stream.write(self.hub.read(snapshot.repo, snapshot.commit, file, start, end))
                    progress.advance(end - start)
                stream.flush()
                os.fsync(stream.fileno())
            if _remote_digest(partial, file) == file.digest:
                partial.replace(self._path(file))
                fsync_directory(self._path(file).parent)
                return
            partial.unlink()
        raise DataError(
            f"{self._name(file)} arrived damaged, twice",
            expected=f"the digest {file.digest}",
            remedy="run the same command again; if it stays so, a proxy changes what passes it",
        )

    def _path(self, file: RemoteFile) -> Path:
        return self.folder / FILES / file.path

    def _name(self, file: RemoteFile) -> str:
        return f"{self.snapshot.repo}@{self.snapshot.commit[:12]}: {file.path}"

    def _open(self, file: RemoteFile) -> Any:
        return self.hub.open(self.snapshot.repo, self.snapshot.commit, file)

    def _partial_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._partial.rglob("*") if path.is_file())

    def _check_disk(self, need: int) -> None:
        if shutil.disk_usage(self.folder).free < need:
            raise _full(self.folder, self.wanted.repo, need)


@contextmanager
def _disk(folder: Path, repo: str, need: int) -> Iterator[None]:
    """Turn a disk that is full into an error that says so; `need` is about what it needs."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _full(folder, repo, need) from error


def _full(folder: Path, repo: str, need: int) -> DataError:
    return DataError(
        f"the disk of {folder} is too full for {repo}",
        saw=f"{shutil.disk_usage(folder).free:,} bytes free",
        expected=f"about {need:,} bytes for what is still to be fetched",
        remedy="free space or set `work` to a larger disk, then run the same command again: "
        "nothing is lost, and what arrived is kept",
    )


def _is_parquet(file: RemoteFile) -> bool:
    return file.path.endswith(".parquet")


def _content(path: Path) -> dict[str, Any]:
    return {"xxh3": digest_file(path), "bytes": path.stat().st_size}


def _remote_digest(path: Path, file: RemoteFile) -> str:
    """The digest as the Hub has it: SHA-256 under LFS, else that of a git blob."""
    under_lfs = len(file.digest) == 64
    state = hashlib.sha256() if under_lfs else hashlib.sha1(b"blob %d\0" % file.bytes)
    with path.open("rb") as stream:
        while chunk := stream.read(_BLOCK_BYTES):
            state.update(chunk)
    return state.hexdigest()
