"""A root file system made on the spot, both images built from it, and checkouts to run them in.

The mirror is the one that this machine's apt uses; nothing is pulled from a registry.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerie.images.build import Builder
from aerie.images.lockfile import read_images
from tests.capabilities import CGROUPS, MOUNTS, USER_NAMESPACES, skip_unless_allowed
from tests.demo import copy_demo
from tests.demo import local_demo as local_demo
from tests.workflow.conftest import built as built

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TOOLS = ("mmdebstrap", "apptainer", "dockerd", "docker")
BASE = "aerie-base:test"


@dataclass(frozen=True)
class Root:
    """A root file system with Python, as a tar file and unpacked."""

    archive: Path
    folder: Path


def run(command: Sequence[str | Path], **options: Any) -> str:
    """Run a command and return what it printed; the test fails with that if the command does."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return str(done.stdout)


@pytest.fixture(scope="session")
def tools() -> None:
    """Everything that `make test-containers` installs, on a machine whose kernel lets it work."""
    # A user's path may lack where the daemon is.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [name for name in TOOLS if shutil.which(name) is None]
    missing += [] if os.geteuid() == 0 else ["root"]
    if missing:
        pytest.fail(f"no {', '.join(missing)}: run `make test-containers` as root")
    skip_unless_allowed(MOUNTS, USER_NAMESPACES)


@pytest.fixture(scope="session")
def root(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """The release that this machine runs, so that its wheels fit."""
    folder = tmp_path_factory.mktemp("root")
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    suite = re.findall(r"^VERSION_CODENAME=(\w+)$", release, re.MULTILINE)[0]
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    mirror = next(uri for uri in run(targets).split() if uri.endswith("/debian/"))
    archive = folder / "root.tar"
    # Device nodes cannot be unpacked in a user namespace; a runtime brings its own.
    options = ["--variant=minbase", "--include=ca-certificates,python3-venv", "--skip=output/dev"]
    run(["mmdebstrap", "--quiet", *options, suite, archive, mirror])
    unpacked = folder / "root"
    unpacked.mkdir()
    run(["tar", "--extract", "--file", archive, "--directory", unpacked, "--exclude=./dev/*"])
    return Root(archive, unpacked)


@pytest.fixture(scope="session")
def daemon(root: Root, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which `docker` talks to a daemon of its own, without a network."""
    skip_unless_allowed(CGROUPS)
    folder = tmp_path_factory.mktemp("docker")
    socket = folder / "docker.sock"
    command = ["dockerd", "--host", f"unix://{socket}", "--data-root", folder / "data"]
    command += ["--exec-root", folder / "exec", "--pidfile", folder / "pid"]
    command += ["--iptables=false", "--bridge=none"]
    environment = os.environ | {"DOCKER_HOST": f"unix://{socket}"}
    if subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False).returncode:
        environment["DOCKER_BUILDKIT"] = "0"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    try:
        for _ in range(600):
            if socket.exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
        run(["docker", "import", root.archive, BASE], env=environment)
        yield environment
    finally:
        process.terminate()
        process.wait()
        subprocess.run(["umount", folder / "exec/netns/default"], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def images(
    root: Root, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """A checkout in which the CPU image was built as a SIF; Docker builds from the same context."""
    folder = copy_demo(tmp_path_factory.mktemp("images") / "checkout").folder
    Builder(folder, str(root.folder), PYTHON).apptainer(read_images(folder)["cpu"])
    return folder


@pytest.fixture(scope="session")
def docker(images: Path, daemon: dict[str, str]) -> dict[str, str]:
    """The environment in which Docker has the CPU image, from the same definition."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DOCKER_HOST", "DOCKER_BUILDKIT"):
            if name in daemon:
                patch.setenv(name, daemon[name])
        Builder(images, BASE, PYTHON).docker(read_images(images)["cpu"])
    return daemon


def with_images(checkout: Path, images: Path) -> None:
    """Give a checkout the SIF that another one built."""
    (checkout / "images").mkdir(parents=True, exist_ok=True)
    for file in (images / "images").glob("*.sif"):
        (checkout / "images" / file.name).hardlink_to(file)
