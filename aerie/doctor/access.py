"""What is fetched from elsewhere: datasets of the Hub, and the bases of images."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from huggingface_hub import HfApi, constants

from aerie.config import ROOT, Config
from aerie.doctor.finding import Finding
from aerie.errors import AerieError, DataError
from aerie.hub.client import Hub
from aerie.hub.retry import Retry
from aerie.images.lockfile import Image, read_images, stale
from aerie.images.registry import registry_digest


def examine_hub(config: Config, hub: Hub | None = None) -> Iterator[Finding]:
    """Whether every dataset that is not here yet can be had, gated ones with this token."""
    hub = hub or Hub(retry=Retry(tries=2))
    wanted = {
        name: entry.hub[0]
        for name, entry in config.datasets.items()
        if entry.hub and not (ROOT / config.work / "sources" / name / "source.json").exists()
    }
    if not wanted:
        yield Finding("datasets", "ok", "all are here")
        return
    if constants.HF_HUB_OFFLINE:
        remedy = "unset HF_HUB_OFFLINE, or give `path` of files that are here"
        words = f"{len(wanted)} are not here, and HF_HUB_OFFLINE is set"
        yield Finding("datasets", "miss", words, remedy)
        return
    refused = 0
    for repo in sorted(set(wanted.values())):
        try:
            hub.call(repo, "main", f"access to {repo}", partial(_may_read, hub, repo))
        except DataError as error:
            refused += 1
            yield Finding("dataset", "miss", error.what, error.remedy or "see docs/sources.md")
            if "did not answer" in error.what:
                # The others would each wait as long.
                return
    if not refused:
        yield Finding("datasets", "ok", f"{len(wanted)} to fetch from {hub.name}, all may be read")


def _may_read(hub: Hub, repo: str) -> None:
    HfApi(endpoint=hub.url).auth_check(repo, repo_type="dataset")


def examine_images(config: Config, root: Path = ROOT) -> Iterator[Finding]:
    """Whether the images are built, and if not, whether the registry has their bases as pinned."""
    try:
        images = read_images(root)
        behind = list(stale(root, images))
    except AerieError as error:
        yield Finding("images", "miss", error.what, error.remedy or "see docs/containers.md")
        return
    if behind:
        words = f"the lock is behind for {', '.join(behind)}"
        yield Finding("images", "note", words, "run `make images-lock`")
    names = ("cpu",) if config.engine == "transformers" else tuple(images)
    unbuilt = [images[name] for name in names if not (root / images[name].file).is_file()]
    if not unbuilt:
        yield Finding("images", "ok", "built as SIF")
        return
    words = f"{', '.join(image.name for image in unbuilt)} not built as SIF"
    remedy = "to run in containers: `make images`; Docker has its own"
    yield Finding("images", "note", words, remedy)
    yield from _bases(unbuilt)


def _bases(images: list[Image]) -> Iterator[Finding]:
    for base in {image.base.name: image.base for image in images}.values():
        name = f"base {base.name}"
        try:
            digest = registry_digest(base.reference)
            tagged = registry_digest(base.image)
        except DataError as error:
            remedy = "check it where the registry is reachable, before the first pull"
            yield Finding(name, "note", f"not checked against its registry: {error.saw}", remedy)
            continue
        if digest != base.digest or tagged != base.digest:
            words = f"{base.image} is {tagged} at the registry, pinned is {base.digest}"
            yield Finding(name, "note", words, "look why it moved, then `make images-lock`")
        else:
            yield Finding(name, "ok", f"{base.image} is what is pinned")
