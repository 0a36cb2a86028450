"""Why a server died: the end of its log, and the cause that the log gives away."""

import re
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import EngineError

_TAIL_BYTES = 200_000
_TAIL_LINES = 15
# Models that SGLang cannot import for want of a package are none that anyone asked for.
_HARMLESS = re.compile(r"Ignore import error|freeze_gc|^\s*\^+\s*$")


@dataclass(frozen=True)
class Cause:
    """What a log says when a server dies of this, what that means, and what helps."""

    name: str
    pattern: str
    remedy: str


# In the order in which they are looked for: what is more special first. The reports behind them
# are listed in docs/troubleshooting.md.
CAUSES = (
    Cause(
        "the port is taken",
        r"[Aa]ddress already in use|Errno 98\b|port \d+ is (?:already )?in use",
        "end what listens there, or leave `sglang.port` at 0, which takes a free one",
    ),
    Cause(
        "the draft is shorter than the target's context",
        r"greater than the derived context|ALLOW_OVERWRITE_LONGER_CONTEXT",
        "`max_position_embeddings` of the draft's config.json must be the target's: export the "
        "draft again, or set `sglang.context_length` to what the draft has",
    ),
    Cause(
        "memory of the GPU or the host does not suffice",
        r"out of memory|OutOfMemoryError|[Nn]ot enough memory|Cannot allocate memory|"
        r"Please increase --mem-fraction-static|cudaErrorMemoryAllocation",
        "lower `sglang.memory_share`, `sglang.context_length` or `sglang.concurrency`, or raise "
        "`sglang.tp`; look with nvidia-smi for another process on the GPUs",
    ),
    Cause(
        "the target cannot hand layers to a draft",
        r"set_eagle3_layers_to_capture|does not implement.*EAGLE3|get_embed_and_head",
        "use a newer SGLang: Kimi-K2.5 needs 0.5.10, Aerie 0.5.13",
    ),
    Cause(
        "an attention backend does not fit the target or the draft",
        r"(?:attention )?backend\b.*(?:not supported|does not support|only supports)|"
        r"is not supported in .*attention backend|trtllm_mla.*(?:head|draft)",
        "an MHA draft beside an MLA target needs a backend of its own: put "
        "`--speculative-draft-attention-backend trtllm_mha` (or fa3) into `sglang.draft_arguments`",
    ),
    Cause(
        "SGLang does not know this model",
        r"[Mm]odel architectures? .*(?:not supported|are not supported)|"
        r"has no SGLang implementation|Cannot find model module|is not a registered model",
        "use a newer SGLang; look for the architecture in its list of models",
    ),
    Cause(
        "the model's own code must be trusted",
        r"trust_remote_code=True|requires you to execute the configuration file",
        "set `sglang.trust_remote_code: true` after a look at that code",
    ),
    Cause(
        "weights or files of the model are missing",
        r"Cannot find any model weights|does not appear to have a file named|"
        r"No such file or directory.*\.(?:safetensors|json)|is not a local folder|"
        r"Incomplete .*safetensors|SafetensorError|MetadataIncompleteBuffer",
        "run `make verify`, and fetch the model again",
    ),
    Cause(
        "an argument is not one of this version",
        r"unrecognized arguments|error: argument |invalid choice",
        "correct `sglang.arguments` or `sglang.draft_arguments`, or use another version",
    ),
    Cause(
        "GPUs cannot talk to each other",
        r"NCCL error|ncclSystemError|ncclUnhandled|Failed to initialize NCCL",
        "raise the container's shared memory (--shm-size 32g), and look at NCCL_DEBUG=INFO",
    ),
    Cause(
        "a library or package is missing",
        r"ModuleNotFoundError: No module named|ImportError: .*cannot open shared object file|"
        r"ImportError: lib\w+",
        "use the image that containers/images.lock.yaml names, or install what is missing",
    ),
    Cause(
        "there is no GPU that it can use",
        r"No CUDA GPUs are available|no NVIDIA driver|CUDA driver version is insufficient|"
        r"No accelerator .*(?:is )?available",
        "start the container with GPUs (--gpus all, or apptainer --nv); look with nvidia-smi",
    ),
    Cause(
        "one of its processes was killed, most likely by the kernel for want of memory",
        r"crashed with exit code -9\b",
        "look with dmesg; give the job more memory, which loading the weights takes too",
    ),
    Cause(
        "it hung: no step within the watchdog's time",
        r"[Ww]atchdog (?:caught|timeout)|Scheduler watchdog",
        "the lines above say where; a kernel that hangs often needs another attention backend",
    ),
)


def text_of(log: Path, start: int = 0) -> str:
    """The end of a log from byte `start` on, without what is known to mean nothing."""
    if not log.exists():
        return ""
    with log.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(start, size - _TAIL_BYTES))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    return "\n".join(line for line in lines if not _HARMLESS.search(line))


def cause_of(text: str) -> Cause | None:
    """The first cause of the table that a log gives away."""
    return next((cause for cause in CAUSES if re.search(cause.pattern, text)), None)


def died(log: Path, start: int, returncode: int | None, when: str) -> EngineError:
    """The error of a server that ended by itself; `start` is where its part of the log begins."""
    text = text_of(log, start)
    cause = cause_of(text)
    tail = "\n".join(f"    {line[:300]}" for line in text.splitlines()[-_TAIL_LINES:])
    reason, remedy = "its log does not say why", f"read {log}"
    if cause:
        reason, remedy = cause.name, cause.remedy
    return EngineError(
        f"the SGLang server died {when}: {reason}",
        saw=f"exit status {returncode}; the end of {log}:\n{tail}",
        remedy=remedy,
    )
