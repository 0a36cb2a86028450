"""`aerie images`: the lock of images, and their builds."""

import argparse
import dataclasses
import datetime
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from aerie.config import ROOT, load
from aerie.errors import ConfigError, DataError
from aerie.images.binds import caches, outside
from aerie.images.build import Builder
from aerie.images.lockfile import LOCK, REMEDY, Base, Image, read_images, stale, write_images
from aerie.images.registry import registry_digest


def refresh(root: Path, today: str) -> list[str]:
    """Write the lock anew: recipes as they are, and what registries say of the bases' tags.

    Returns what a person should know; a base whose registry does not answer keeps its digest.

    Raises:
        ConfigError: the lock, a definition or a requirements file cannot be read.
    """
    images = read_images(root)
    notes = [f"{name}: new recipe" for name in stale(root, images)]
    bases: dict[str, Base] = {}
    for base in {image.base.name: image.base for image in images.values()}.values():
        try:
            digest = registry_digest(base.image)
        except DataError as error:
            notes.append(f"{base.name} was not checked against its registry\n{error}")
            bases[base.name] = base
            continue
        if digest != base.digest:
            notes.append(f"{base.name}: {base.image} is {digest} now, was {base.digest}")
        verified = f"{today}: the registry gave this digest for this tag"
        bases[base.name] = dataclasses.replace(base, digest=digest, verified=verified)
    write_images(
        root,
        {
            name: dataclasses.replace(image, base=bases[image.base.name])
            for name, image in images.items()
        },
    )
    return notes


def check(root: Path = ROOT) -> None:
    """Check that the lock says what the definitions and requirements are.

    Raises:
        ConfigError: an image's recipe in the lock is an earlier one.
    """
    behind = list(stale(root, read_images(root)))
    if behind:
        raise ConfigError(
            f"{LOCK} is behind its definitions or requirements",
            saw=", ".join(behind),
            remedy=REMEDY,
        )


def _lock(options: argparse.Namespace) -> None:
    if options.check:
        check()
        return
    console = Console(highlight=False)
    notes = refresh(ROOT, datetime.date.today().isoformat())
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print(f"wrote {LOCK}")
    if any("was not checked" in note for note in notes):
        sys.exit(1)


def _chosen(names: list[str]) -> list[Image]:
    images = read_images()
    unknown = sorted(set(names) - set(images))
    if unknown:
        raise ConfigError(
            "there is no such image", saw=", ".join(unknown), expected=" or ".join(images)
        )
    return [images[name] for name in names or images]


def _build(options: argparse.Namespace) -> None:
    check()
    builder = Builder(ROOT, options.base, options.python)
    for image in _chosen(options.names):
        made = builder.docker(image) if options.runtime == "docker" else builder.apptainer(image)
        print(made)


def _show(options: argparse.Namespace) -> None:
    if options.volumes:
        config = load(options.config)
        for path in outside(config, ROOT):
            print(f"--volume={path}:{path}")
        for name, value in caches(config, ROOT).items():
            print(f"--env={name}={value}")
        return
    if options.file or options.tag:
        for image in _chosen(options.names):
            print(image.file if options.file else image.tag)
        return
    table = Table("image", "SIF", "base", Column("file", overflow="fold"))
    for image in _chosen(options.names):
        there = "built" if (ROOT / image.file).is_file() else "not built"
        table.add_row(image.name, there, image.base.image, image.file)
    Console(highlight=False).print(table)


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `images` and what it can do."""
    group = commands.add_parser("images", help="build images of containers, and lock them")
    actions = group.add_subparsers(required=True, metavar="ACTION")

    each = actions.add_parser("lock", help=f"write {LOCK}: recipes, and what registries say")
    each.add_argument("--check", action="store_true", help="only check the recipes")
    each.set_defaults(main=_lock)

    each = actions.add_parser("build", help="build images")
    each.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    each.add_argument(
        "--runtime",
        choices=("apptainer", "docker"),
        default="apptainer" if shutil.which("apptainer") else "docker",
    )
    each.add_argument("--base", help="a local stand-in for the base, where there is no registry")
    each.add_argument("--python", help="version of the stand-in's Python")
    each.set_defaults(main=_build)

    each = actions.add_parser("show", help="what images there are")
    each.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    each.add_argument("--config", type=Path, default=Path("config.yaml"))
    form = each.add_mutually_exclusive_group()
    form.add_argument("--file", action="store_true", help="only where rules look for the SIF")
    form.add_argument(
        "--volumes", action="store_true", help="only what Docker must be given to see for CONFIG"
    )
    form.add_argument("--tag", action="store_true", help="only the name in Docker")
    each.set_defaults(main=_show)
