"""What a server with a draft says of itself from inside: its layers, and the width that `fc` sees.

`/server_info` tells neither. SGLang loads this as a plugin (`sglang.srt.plugins`); it looks at the
models when they are loaded and before any graph is captured, so that it sees passes that a graph
replays later without running Python. It imports nothing but what is in Python.
"""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.engines.sglang.spool import PLUGIN, Spool

log = logging.getLogger("aerie")

VARIABLE = "AERIE_PROBE"
# Names of Aerie's entry points.
PLUGINS = (PLUGIN, f"{PLUGIN}_probe")
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
        for file in self.folder.glob("*.json"):
            file.unlink()

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
    for name, module in runner.model.named_modules():
        if name.split(".")[-1] == "fc":
            log.info("aerie: watching %s of the draft", name)
            handle = module.register_forward_hook(_first_call(probe, name))
            module.aerie_probe = handle


def _first_call(probe: Probe, name: str) -> Any:
    """A forward hook that leaves the width of its module's input once, and is then gone."""

    def hook(module: Any, arguments: tuple[Any, ...], output: Any) -> None:
        probe.leave("draft", {"module": name, "width": arguments[0].shape[-1]})
        module.aerie_probe.remove()

    return hook
