"""containers/images.lock.yaml: what images are made of, every base by its digest.

A base is pulled from a registry and pinned by the digest of its manifest. An image of Aerie's is
built where it is used; two builds of it differ in their times, so that it is known by its recipe:
one digest of its definition, of the pins of its requirements and of its base.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from aerie.config import ROOT
from aerie.errors import ConfigError
from aerie.files import canonical_json, replacing
from aerie.pins import read_pins

LOCK = Path("containers/images.lock.yaml")
REMEDY = "run `make images-lock` and look at what it changes"

_HEADER = """\
# What containers are made of. `make images-lock` writes this file: docs/containers.md.
# bases come from a registry and are pulled by digest; images are built from them, and their recipe
# is a digest of definition, requirements and base.
"""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BASE_KEYS = {"image", "digest", "python", "verified"}
_IMAGE_KEYS = {"definition", "base", "requirements", "recipe"}


@dataclass(frozen=True)
class Base:
    """An image of somebody else. `python` is the version of its `python3`, such as 3.12."""

    name: str
    image: str
    digest: str
    python: str
    verified: str

    @property
    def reference(self) -> str:
        """What a runtime pulls: by digest, whatever the tag points to by now."""
        return f"{self.image.rpartition(':')[0]}@{self.digest}"


@dataclass(frozen=True)
class Image:
    """An image of Aerie's. `definition` and `requirements` are paths inside the checkout."""

    name: str
    definition: str
    base: Base
    requirements: str
    recipe: str

    @property
    def title(self) -> str:
        """Name and the beginning of the recipe: an image of another recipe has another title."""
        return f"aerie-{self.name}-{self.recipe.removeprefix('sha256:')[:12]}"

    @property
    def file(self) -> str:
        """Where rules look for it as a SIF, relative to the checkout."""
        return f"images/{self.title}.sif"

    @property
    def tag(self) -> str:
        """Its name in Docker."""
        return self.title


def read_images(root: Path = ROOT) -> dict[str, Image]:
    """The images that the lock names.

    Raises:
        ConfigError: the file is missing, a key is missing or unknown, or a base has no digest.
    """
    content = _content(root / LOCK)
    bases = {name: _base(name, entry) for name, entry in content["bases"].items()}
    return {name: _image(name, entry, bases) for name, entry in content["images"].items()}


def recipe(root: Path, image: Image) -> str:
    """What the recipe of an image is now. Comments do not count.

    Raises:
        ConfigError: the definition or the requirements cannot be read.
    """
    path = root / image.definition
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", saw=error) from error
    content = {
        "definition": [line.rstrip() for line in lines if line.strip() and line[0] != "#"],
        "requirements": read_pins(root / image.requirements),
        "base": image.base.digest,
    }
    return f"sha256:{hashlib.sha256(canonical_json(content).encode()).hexdigest()}"


def stale(root: Path, images: dict[str, Image]) -> Iterator[str]:
    """The images whose recipe in the lock is not what it is now."""
    return (name for name, image in images.items() if recipe(root, image) != image.recipe)


def digests(images: dict[str, Image]) -> dict[str, str]:
    """What pins each image, as the lock of a build says it: its recipe, and its base's digest."""
    result = {name: image.recipe for name, image in images.items()}
    return result | {image.base.image: image.base.digest for image in images.values()}


def write_images(root: Path, images: dict[str, Image]) -> None:
    """Write the lock, with the recipes as they are now."""
    bases = {image.base.name: image.base for image in images.values()}
    content = {
        "bases": {
            name: {
                "image": base.image,
                "digest": base.digest,
                "python": base.python,
                "verified": base.verified,
            }
            for name, base in sorted(bases.items())
        },
        "images": {
            name: {
                "definition": image.definition,
                "base": image.base.name,
                "requirements": image.requirements,
                "recipe": recipe(root, image),
            }
            for name, image in images.items()
        },
    }
    text = _HEADER + yaml.safe_dump(content, sort_keys=False, width=100)
    with replacing(root / LOCK) as scratch:
        scratch.write_text(text, encoding="utf-8")


def _content(path: Path) -> Any:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read", saw=error) from error
    if not isinstance(content, dict) or set(content) != {"bases", "images"}:
        raise ConfigError(f"{path} is no lock of images", expected="`bases` and `images`")
    return content


def _fields(what: str, entry: Any, keys: set[str]) -> dict[str, str]:
    if not isinstance(entry, dict) or set(entry) != keys:
        saw = ", ".join(map(str, entry)) if isinstance(entry, dict) else entry
        raise ConfigError(
            f"{LOCK}: {what} is incomplete", saw=saw, expected=", ".join(sorted(keys))
        )
    return {key: str(value) for key, value in entry.items()}


def _base(name: str, entry: Any) -> Base:
    base = Base(name=name, **_fields(f"base {name}", entry, _BASE_KEYS))
    if not _DIGEST.fullmatch(base.digest):
        raise ConfigError(
            f"{LOCK}: base {name} has no digest",
            saw=base.digest,
            expected="sha256: and 64 hexadecimal digits; a tag may point elsewhere tomorrow",
            remedy=REMEDY,
        )
    if ":" not in base.image.rpartition("/")[2]:
        raise ConfigError(f"{LOCK}: base {name} has no tag", saw=base.image, expected="NAME:TAG")
    return base


def _image(name: str, entry: Any, bases: dict[str, Base]) -> Image:
    fields = _fields(f"image {name}", entry, _IMAGE_KEYS)
    if fields["base"] not in bases:
        raise ConfigError(
            f"{LOCK}: image {name} names a base that is not there",
            saw=fields["base"],
            expected=" or ".join(bases),
        )
    base = bases[fields.pop("base")]
    return Image(name=name, base=base, **fields)
