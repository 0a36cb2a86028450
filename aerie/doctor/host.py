"""GPUs, driver, limits, shared memory and ports of this machine."""

import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.doctor.finding import Finding

# CUDA 13, which the serving image is built for, needs this branch of the driver.
_DRIVER = 580
# A server holds a connection for each request and a descriptor for each file of the checkpoint.
_OPEN_FILES = 65_536
# NCCL keeps its buffers between GPUs there, and the capture plugin its spool.
_SHARED_BYTES = 16e9
_GB = 1e9


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it. `memory` and `used` are bytes."""

    name: str
    memory: int
    used: int
    driver: str


def read_gpus() -> list[Gpu] | str:
    """The GPUs of this machine, or why they are not known."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no nvidia-smi on the path: no driver, or no GPU"
    fields = "name,memory.total,memory.used,driver_version"
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"
    if done.returncode != 0:
        text = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        return f"nvidia-smi: {text.splitlines()[0]}"
    found = []
    for line in done.stdout.splitlines():
        name, memory, used, driver = (part.strip() for part in line.split(","))
        found.append(Gpu(name, int(memory) << 20, int(used) << 20, driver))
    return found


def examine_gpus(gpus: list[Gpu] | str, wanted: int) -> Iterator[Finding]:
    """Whether there are `wanted` GPUs that are free, and their driver."""
    if isinstance(gpus, str):
        remedy = "install NVIDIA's driver, or build on a host that has GPUs"
        yield Finding("GPUs", "miss", gpus, remedy)
        return
    words = f"{len(gpus)} of {wanted}" + (f", {gpus[0].name}" if gpus else "")
    if len(gpus) < wanted:
        remedy = "a host with more GPUs, or a smaller target and `plan.gpus_per_host`"
        yield Finding("GPUs", "miss", words, remedy)
    else:
        yield Finding("GPUs", "ok", words)
    if not gpus:
        return
    busy = [number for number, gpu in enumerate(gpus) if gpu.used > 0.05 * gpu.memory]
    if busy:
        remedy = "end what runs there: `nvidia-smi` lists it"
        yield Finding("GPU memory", "miss", f"in use on GPU {', '.join(map(str, busy))}", remedy)
    else:
        memory = sum(gpu.memory for gpu in gpus)
        yield Finding("GPU memory", "ok", f"{memory / _GB:,.0f} GB, free")
    driver = gpus[0].driver
    if int(driver.split(".")[0]) < _DRIVER:
        remedy = f"a driver of branch {_DRIVER} or later, which CUDA 13 needs"
        yield Finding("driver", "miss", driver, remedy)
    else:
        yield Finding("driver", "ok", driver)


def examine_fit(weights: int | None, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Whether `weights` bytes of the target leave a fifth of the GPUs' memory for its cache."""
    memory = sum(gpu.memory for gpu in gpus)
    if weights is None or not memory:
        why = "the size of its weights" if weights is None else "the memory of the GPUs"
        yield Finding("target fits", "note", f"{why} is not known", "see the lines above")
        return
    words = f"weights {weights / _GB:,.1f} GB, GPUs {memory / _GB:,.1f} GB"
    if weights <= 0.8 * memory:
        yield Finding("target fits", "ok", words)
    else:
        remedy = "more GPUs or a smaller precision: a fifth of the memory is for the cache"
        yield Finding("target fits", "miss", words, remedy)


def examine_limits(shared: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Open files, locked memory, and the size of shared memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _limit(hard) < _OPEN_FILES:
        remedy = f"raise it: `ulimit -n {_OPEN_FILES}`; Docker: --ulimit nofile={_OPEN_FILES}"
        yield Finding("open files", "miss", f"at most {hard:,}", remedy)
    elif _limit(soft) < _OPEN_FILES:
        remedy = f"run `ulimit -n {_OPEN_FILES}` before the build"
        yield Finding("open files", "note", f"{soft:,} of {_words(hard)}", remedy)
    else:
        yield Finding("open files", "ok", _words(soft))
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if _limit(locked) < 2**36:
        remedy = "`ulimit -l unlimited`, if GPUs of several hosts talk over InfiniBand"
        yield Finding("locked memory", "note", f"{locked:,} bytes", remedy)
    else:
        yield Finding("locked memory", "ok", _words(locked))
    size = shutil.disk_usage(shared).total if shared.is_dir() else 0
    words = f"{size / _GB:,.1f} GB in {shared}"
    if size < _SHARED_BYTES:
        remedy = f"{_SHARED_BYTES / _GB:,.0f} GB; Docker: --shm-size or --ipc=host"
        yield Finding("shared memory", "miss", words, remedy)
    else:
        yield Finding("shared memory", "ok", words)


def examine_port(host: str, port: int) -> Iterator[Finding]:
    """Whether a server can listen on `port` of an address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = "end what listens there, or configure another port"
            yield Finding("port", "miss", f"{port}: {error.strerror}", remedy)
        else:
            yield Finding("port", "ok", f"{port} is free")


def examine_sglang(python: str) -> Iterator[Finding]:
    """Whether `python`, the one that servers are started with, has SGLang."""
    code = "import importlib.metadata as m; print(m.version('sglang'))"
    version = _output([python, "-c", code]) if shutil.which(python) else None
    if version is None:
        remedy = "set sglang.python to one that has it (docs/serving.md), or run in containers"
        yield Finding("SGLang", "note", f"{python} has none", remedy)
    else:
        yield Finding("SGLang", "ok", f"{version} in {python}")


def examine_runtimes() -> Iterator[Finding]:
    """Which container runtimes are there, and whether Docker hands out GPUs."""
    found = []
    for program in ("apptainer", "docker"):
        if shutil.which(program) is None:
            continue
        output = _output([program, "--version"])
        version = re.search(r"\d+(\.\d+)+", output or "")
        found.append(f"{program} {version[0] if version else 'of unknown version'}")
    if not found:
        remedy = "Apptainer or Docker: docs/containers.md; or SGLang in an environment of its own"
        yield Finding("containers", "note", "neither apptainer nor docker", remedy)
        return
    yield Finding("containers", "ok", ", ".join(found))
    if found[-1].startswith("docker"):
        runtimes = _output(["docker", "info", "--format", "{{json .Runtimes}}"])
        if runtimes is None:
            remedy = "start it and join its group; Apptainer needs neither"
            yield Finding("Docker", "note", "its daemon does not answer", remedy)
        elif "nvidia" not in runtimes:
            remedy = "install NVIDIA's container toolkit, or use Apptainer, which needs none"
            yield Finding("Docker", "note", "hands out no GPUs", remedy)


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _limit(value: int) -> float:
    return float("inf") if value == resource.RLIM_INFINITY else value


def _words(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"
