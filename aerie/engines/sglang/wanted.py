"""What a server must be: its command, and the check of what it says that it is.

Whatever decides a figure or an answer is written into the command and read back from
`/server_info`, whoever started the server. The flags are those of SGLang 0.5.13 to 0.5.23
(`srt/server_args.py`, later `srt/arg_groups/fields/`).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.contracts.draft import ARCHITECTURE
from aerie.engines.sglang.probe import PLUGINS, Probe
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.spool import Spool
from aerie.engines.sglang.versions import check_version
from aerie.errors import EngineError, GateError
from aerie.files import read_json
from aerie.gates.serving import FLAG
from aerie.target import Target

# Which `--speculative-algorithm` a draft's architecture means. Nobody types the flag: a draft of
# EAGLE-3 under EAGLE answers, accepts nothing and warns of nothing.
_ALGORITHMS = {ARCHITECTURE: "EAGLE3", "Eagle3DeepseekV2ForCausalLM": "EAGLE3"}
# Targets whose first layer decides how SGLang reads the list (models/deepseek_v2.py,
# `set_eagle3_layers_to_capture`): one that does not begin with 1 is taken as it is.
_FIRST_LAYER_DECIDES = ("Deepseek", "KimiK2", "KimiVL")
# Tokens that a server's context is longer than what is captured: it takes inputs up to 7 fewer
# (`max_req_input_len` in srt/managers/tp_worker.py).
_CAPTURE_ROOM = 8


@dataclass(frozen=True)
class Wanted:
    """A target served plainly, with a spool that takes its states, or with a draft."""

    target: Target
    spool: Spool | None = None
    draft: Path | None = None
    k: int = 0
    probe: Probe | None = None

    @classmethod
    def plain(cls, target: Target) -> "Wanted":
        """The target alone, for answers and for the baseline of a bench."""
        return cls(target)

    @classmethod
    def capture(cls, target: Target, spool: Spool) -> "Wanted":
        """The target alone, its states written to `spool`."""
        check_layers(target, spool.sglang_config)
        return cls(target, spool=spool)

    @classmethod
    def with_draft(cls, target: Target, draft: Path, k: int, probe: Probe) -> "Wanted":
        """The target with the draft in folder `draft`, in chains of `k` tokens.

        Raises:
            EngineError: SGLang would read the draft's layers as others.
        """
        check_layers(target, layers_of(draft))
        return cls(target, draft=draft, k=k, probe=probe)

    @property
    def purpose(self) -> str:
        """For messages."""
        return "capture" if self.spool else "draft" if self.draft else "plain"

    @property
    def algorithm(self) -> str | None:
        """What `/server_info` must say: capture names an algorithm in its command and runs none."""
        return algorithm_of(self.draft) if self.draft else None

    def command(self, settings: SglangSettings, version: str, port: int) -> list[str]:
        """The command line of a server of SGLang `version`."""
        check_version(version)
        options: dict[str, object] = {
            "--model-path": self.target.folder.resolve(),
            "--dtype": self.target.dtype,
            "--host": settings.host,
            "--port": port,
            "--tp-size": settings.tp,
            "--mem-fraction-static": settings.memory_share,
            "--context-length": self._context_length(settings),
            "--chunked-prefill-size": settings.chunked_prefill,
            # Speculation would lower it to 48, so it is said to every server.
            "--max-running-requests": settings.concurrency,
        }
        if self.draft:
            options |= {
                "--speculative-algorithm": self.algorithm,
                "--speculative-draft-model-path": self.draft.resolve(),
                "--speculative-num-steps": self.k,
                "--speculative-eagle-topk": 1,
                "--speculative-num-draft-tokens": self.k + 1,
            }
        words = [settings.python, "-m", "sglang.launch_server"]
        for option, value in options.items():
            words += [option, str(value)] if value is not None else []
        trusted = settings.trust_remote_code or self.target.trust_remote_code
        words += ["--trust-remote-code"] if trusted else []
        words += self.spool.arguments(version) if self.spool else []
        words += settings.arguments
        return [*words, *(settings.draft_arguments if self.draft else ())]

    def _context_length(self, settings: SglangSettings) -> int | None:
        if not self.spool:
            return settings.context_length
        # SGLang keeps a few places free, and a prompt with its answer may be as long as there is.
        return (settings.context_length or self.target.max_position) + _CAPTURE_ROOM

    def environment(self, settings: SglangSettings) -> dict[str, str]:
        """The environment of a server: this process's, less what is meant for jobs."""
        own = {**os.environ, **settings.environment}
        if self.spool:
            # The room beyond the target's context is never used: no row has a position there.
            own["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
        plugin = self.spool or self.probe
        if plugin:
            own |= plugin.variables()
            own["PYTHONPATH"] = _joined(os.pathsep, *plugin.paths(), own.get("PYTHONPATH"))
            # A list of the only plugins that are loaded; without it, all are.
            if allowed := own.get("SGLANG_PLUGINS"):
                own["SGLANG_PLUGINS"] = _joined(",", allowed, *PLUGINS)
        return own

    def check(self, info: Mapping[str, Any], settings: SglangSettings, *, given: bool) -> None:
        """Compare `/server_info` with what is wanted.

        `given`: the server is not Aerie's own, so that it may know the target by another name.

        Raises:
            EngineError: a field differs; all that differ are named.
            GateError: the serving gate: the algorithm is not the draft's.
        """
        check_version(str(info.get("version")))
        if self.draft and info.get("speculative_algorithm") != self.algorithm:
            raise GateError(
                "serving",
                "the server does not run the draft as what it is",
                saw=f"speculative_algorithm {info.get('speculative_algorithm')}",
                expected=f"{self.algorithm}, from the draft's architecture",
                remedy=FLAG,
            )
        expected = self._expected(settings, given)
        wrong = {name: info.get(name) for name in expected if info.get(name) != expected[name]}
        running = info.get("max_running_requests")
        if not self.spool and (running or 0) < settings.concurrency:
            wrong["max_running_requests"] = running
            expected["max_running_requests"] = f"{settings.concurrency} at least"
        if wrong:
            raise EngineError(
                f"the server is not the one that is needed here ({self.purpose})",
                saw=_list(wrong),
                expected=_list({name: expected[name] for name in wrong}),
                remedy="start it again with these arguments, or leave it to Aerie"
                if given
                else "look for these in `sglang.arguments`: they must not be said twice",
            )

    def _expected(self, settings: SglangSettings, given: bool) -> dict[str, object]:
        named = settings.model if given and settings.model else str(self.target.folder.resolve())
        expected: dict[str, object] = {
            "model_path": named,
            "dtype": self.target.dtype,
            "speculative_algorithm": self.algorithm,
        }
        if not given:
            expected["tp_size"] = settings.tp
            if (length := self._context_length(settings)) is not None:
                expected["context_length"] = length
        if self.spool:
            expected |= {
                "disable_radix_cache": True,
                "pp_size": 1,
                "enable_dp_attention": False,
            }
        if self.draft:
            expected |= {
                "speculative_draft_model_path": str(self.draft.resolve()),
                "speculative_num_steps": self.k,
                "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": self.k + 1,
            }
        return expected


def algorithm_of(draft: Path) -> str:
    """The `--speculative-algorithm` that the architecture of a draft means.

    Raises:
        EngineError: it is no draft that SGLang serves by EAGLE-3.
    """
    found = read_json(draft / "config.json").get("architectures")
    if found and len(found) == 1 and found[0] in _ALGORITHMS:
        return _ALGORITHMS[found[0]]
    raise EngineError(
        f"{draft} holds no draft that Aerie can serve",
        saw=f"architectures {found}",
        expected=f"one of {', '.join(_ALGORITHMS)}",
        remedy="give the folder of a draft; `architectures` decides how it is served",
    )


def layers_of(draft: Path) -> tuple[int, ...]:
    """The layers that a draft's config.json names, in SGLang's convention.

    Raises:
        EngineError: it names none; SGLang would then choose some in silence.
    """
    config = read_json(draft / "config.json").get("eagle_config") or {}
    layers = config.get("eagle_aux_hidden_state_layer_ids")
    if not layers:
        raise EngineError(
            f"{draft}/config.json names no layers",
            saw=f"eagle_config {config}",
            expected="eagle_aux_hidden_state_layer_ids",
            remedy="export the draft again: `make verify --repair` and run the build",
        )
    return tuple(layers)


def check_layers(target: Target, sglang_config: tuple[int, ...]) -> None:
    """Refuse layers that this target's class in SGLang would read as others.

    Raises:
        EngineError: the target is of a DeepSeek or Kimi family and the list begins not with 1.
    """
    architectures = read_json(target.folder / "config.json").get("architectures") or [""]
    if sglang_config[0] == 1 or not architectures[0].startswith(_FIRST_LAYER_DECIDES):
        return
    raise EngineError(
        f"SGLang would take other layers of {architectures[0]} than the configuration says",
        saw=f"layers {list(sglang_config)} in SGLang's convention",
        expected="a list that begins with 1: any other is read as it is, one layer too low",
        remedy="let `states.layers` begin with 2, or leave the key out",
    )


def _joined(separator: str, *parts: str | None) -> str:
    return separator.join(filter(None, parts))


def _list(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())
