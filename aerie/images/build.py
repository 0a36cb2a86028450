"""Builds an image: wheels are fetched here, then Docker or Apptainer makes it without a network.

So a build needs no password of an index inside, and what went into it lies in one folder.
"""

import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aerie.command import log
from aerie.errors import EngineError
from aerie.images.definition import apptainer, read_definition
from aerie.images.lockfile import Image

# The C library of the oldest base, Debian 12: wheels up to it are taken.
_GLIBC = 36


@dataclass(frozen=True)
class Builder:
    """Builds images from `root`, a checkout.

    `base` stands for the pinned base where there is no registry: the name of an image for Docker,
    the folder of a root file system for Apptainer; `python` is then the version of its Python.
    """

    root: Path
    base: str | None = None
    python: str | None = None

    def docker(self, image: Image) -> str:
        """Build for Docker and return the tag.

        Raises:
            EngineError: there is no Docker, or it failed.
        """
        context = self.context(image)
        definition = self.root / image.definition
        read_definition(definition)
        base = self.base or image.base.reference
        command = ["docker", "build", "--quiet", "--tag", image.tag, "--file", str(definition)]
        _run([*command, "--build-arg", f"BASE={base}", str(context)])
        return image.tag

    def apptainer(self, image: Image, out: Path | None = None) -> Path:
        """Build a SIF, `out` or where the rules look for it, and return its path.

        Raises:
            EngineError: there is no Apptainer, or it failed.
        """
        context = self.context(image)
        stages = read_definition(self.root / image.definition)
        path = out or self.root / image.file
        path.parent.mkdir(parents=True, exist_ok=True)
        recipe = context / "image.def"
        recipe.write_text(apptainer(stages, self.base or image.base.reference, context))
        scratch = path.with_name(f".{path.name}.tmp")
        fast = ["--mksquashfs-args", "-comp zstd -Xcompression-level 3"]
        command = ["apptainer", "build", "--fakeroot", "--force", *fast]
        try:
            _run([*command, str(scratch), str(recipe)])
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
        return path

    def context(self, image: Image) -> Path:
        """The folder that a build sees: requirements.txt and wheels/."""
        folder = self.root / "images/build" / image.title
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.root / image.requirements, folder / "requirements.txt")
        if not (folder / "wheels").is_dir():
            log.info("%s: fetching wheels", image.name)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                wheels = Path(scratch) / "wheels"
                fetch_wheels(
                    folder / "requirements.txt", wheels, self.python or image.base.python, image
                )
                wheels.rename(folder / "wheels")
        return folder


def fetch_wheels(requirements: Path, folder: Path, python: str, image: Image) -> None:
    """Fill `folder` with the wheels of `requirements` for CPython `python`, by this machine's pip.

    Some packages have no wheels: they are built here, and being pure Python they fit any version.

    Raises:
        EngineError: pip failed, or the wheels of torch are of the other kind.
    """
    alone = ["--no-deps"] if image.name == "serve" else []
    _pip("wheel", *alone, "--wheel-dir", str(folder), "--requirement", str(requirements))
    if python != f"{sys.version_info.major}.{sys.version_info.minor}":
        machine = platform.machine()
        tags = [f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC, 4, -1)]
        tags += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
        options = [f"--platform={tag}" for tag in tags]
        options += [f"--python-version={python}", "--only-binary=:all:", "--no-deps"]
        for wheel in sorted(folder.glob("*.whl")):
            if re.search(r"-cp\d+-cp\d+-", wheel.name):
                name, version = wheel.name.split("-")[:2]
                _pip("download", *options, "--dest", str(folder), f"{name}=={version}")
                wheel.unlink()
    cpu = [wheel.name for wheel in folder.glob("torch-*+cpu-*")]
    if image.name == "train" and cpu:
        raise EngineError(
            "the wheels for the training image hold a build of torch without CUDA",
            saw=cpu[0],
            remedy="unset PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS for this image",
        )


def _pip(*arguments: str) -> None:
    _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments])


def _run(command: list[str]) -> None:
    """Run a command; its output goes where the log goes."""
    if shutil.which(command[0]) is None:
        raise EngineError(
            f"{command[0]} is not here", remedy="docs/containers.md says how to get it"
        )
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log.debug("%s", done.stdout)
    if done.returncode != 0:
        raise EngineError(
            f"`{' '.join(command[:3])}` failed with exit code {done.returncode}",
            saw="\n".join(done.stdout.splitlines()[-20:]),
        )
