"""What a server with a draft says of itself from inside: its layers, and the width that `fc` sees.

`/server_info` tells neither. SGLang loads this as a plugin (`sglang.srt.plugins`); it looks at the
models when they are loaded and before any graph is captured, so that it sees passes that a graph
replays later without running Python. What it imports is in Python, or in SGLang's environment.
"""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.engines.sglang.spool import PLUGIN, Spool

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("aerie")

VARIABLE = "AERIE_PROBE"
# Names of Aerie's entry points.
PLUGINS = (PLUGIN, f"{PLUGIN}_probe")
# A prefix of fewer rows says little about rotations. The server's own warm-up request is shorter.
PREFIX_ROWS = 32
_PREFIX = "prefix.safetensors"
_PREPARE = "sglang.srt.model_executor.model_runner.ModelRunner.init_attention_backends"


@dataclass(frozen=True)
class Probe:
    """A folder where a server leaves what its models are, seen from inside."""

    folder: Path

    def variables(self) -> dict[str, str]:
        """The environment of a server that is to be looked into."""
        return {VARIABLE: str(self.folder.resolve())}

    @staticmethod
    def paths() -> list[str]:
        """Folders of a server's PYTHONPATH: Aerie itself, and what names its plugins."""
        return Spool.paths()

    def clear(self) -> None:
        """Forget what an earlier server left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in [*self.folder.glob("*.json"), self.folder / _PREFIX]:
            file.unlink(missing_ok=True)

    @property
    def layers(self) -> tuple[int, ...] | None:
        """Layers that the target hands to the draft, as indices into `output_hidden_states`."""
        found = self._read("target")
        return tuple(found["layers"]) if found else None

    @property
    def states_width(self) -> int:
        """Width of the states that the draft's `fc` was called with; 0 if it was not called."""
        found = self._read("draft")
        return int(found["width"]) if found else 0

    @property
    def prefix(self) -> "tuple[Tensor, Tensor] | None":
        """States [n, A*H] of the first long prefix that the draft read, and logits [K] after it."""
        from safetensors.torch import load_file

        if not (self.folder / _PREFIX).exists():
            return None
        found = load_file(self.folder / _PREFIX)
        return found["aux"], found["logits"]

    def leave_prefix(self, aux: "Tensor", logits: "Tensor") -> None:
        """Called in the server: write what `prefix` reads."""
        from safetensors.torch import save_file

        scratch = self.folder / f".prefix.{os.getpid()}"
        tensors = {"aux": aux, "logits": logits}
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, scratch)
        scratch.replace(self.folder / _PREFIX)

    def leave(self, name: str, content: dict[str, Any]) -> None:
        """Called in the server: write one fact, whole or not at all."""
        scratch = self.folder / f".{name}.{os.getpid()}"
        scratch.write_text(json.dumps(content), encoding="utf-8")
        scratch.replace(self.folder / f"{name}.json")

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content


def register() -> None:
    """Hook into this process if its environment names a probe. Called by SGLang."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    probe = Probe(Path(folder))

    def look(result: None, runner: Any) -> None:
        _look(probe, runner)

    HookRegistry.register(_PREPARE, look, HookType.AFTER)


def _look(probe: Probe, runner: Any) -> None:
    from sglang.srt.distributed.parallel_state import get_tensor_model_parallel_rank

    if get_tensor_model_parallel_rank() != 0:
        return
    if not runner.is_draft_worker:
        layers = [
            list(module.layers_to_capture)
            for module in runner.model.modules()
            if getattr(module, "layers_to_capture", None)
        ]
        probe.leave("target", {"layers": layers[0] if layers else []})
        return
    log.info("aerie: watching the draft")
    _Watch(probe).attach(runner.model)


class _Watch:
    """Looks at the draft's modules until it has seen one prefix of `PREFIX_ROWS` rows at least.

    The names are those of SGLang's models/llama_eagle3.py.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe, self._hooks = probe, list[Any]()
        self._aux: Tensor | None = None
        self._seen = self._from_start = False

    def attach(self, model: Any) -> None:
        for name, module in model.named_modules():
            last = name.split(".")[-1]
            if last == "fc":
                self._hooks.append(module.register_forward_hook(self._reduced))
            elif last == "logits_processor":
                self._hooks.append(module.register_forward_hook(self._scored))
            elif type(module).__name__.endswith("DecoderLayer"):
                self._hooks.append(module.register_forward_pre_hook(self._layer))

    def _reduced(self, module: Any, arguments: tuple[Any, ...], output: Any) -> None:
        self._aux = arguments[0]
        if not self._seen:
            self._probe.leave("draft", {"width": self._aux.shape[-1]})
            self._seen = True

    def _layer(self, module: Any, arguments: tuple[Any, ...]) -> None:
        import torch

        positions = arguments[0]
        # Nothing may be read back while a graph is captured.
        self._from_start = (
            len(positions) >= PREFIX_ROWS
            and not (positions.is_cuda and torch.cuda.is_current_stream_capturing())
            and positions.tolist() == list(range(len(positions)))
        )

    def _scored(self, module: Any, arguments: tuple[Any, ...], output: Any) -> None:
        aux, self._aux = self._aux, None
        logits = output.next_token_logits
        if aux is None or not self._from_start or logits is None or len(logits) != 1:
            return
        self._probe.leave_prefix(aux, logits[0])
        for hook in self._hooks:
            hook.remove()
