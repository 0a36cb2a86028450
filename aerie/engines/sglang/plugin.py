"""The capture plugin, which SGLang loads into each of its processes (`sglang.srt.plugins`).

It reads what the target's logits processor is given: the concatenated states of the captured
layers and the final states after the norm, for every row of every prefill chunk. Tried with
0.5.16, where it sets the layers itself, and 0.5.23, which has a flag for it. SGLang only logs that
a plugin failed to load, so the job looks for the marker that `prepare` leaves and asks for one
request before it trusts the server.
"""

import logging
from typing import TYPE_CHECKING, Any

from aerie.engines.sglang.plugin_writer import RowWriter, Segment
from aerie.engines.sglang.spool import RequestName, Rows, Spool
from aerie.errors import AerieError, EngineError

if TYPE_CHECKING:
    import torch

log = logging.getLogger("aerie")

_PREPARE = "sglang.srt.model_executor.model_runner.ModelRunner.init_attention_backends"
_FORWARD = "sglang.srt.layers.logits_processor.LogitsProcessor.forward"


def register() -> None:
    """Hook into this process if its environment names a spool. Called by SGLang."""
    spool = Spool.from_environment()
    if spool is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    plugin = CapturePlugin(spool)
    HookRegistry.register(_PREPARE, plugin.prepare, HookType.AFTER)
    HookRegistry.register(_FORWARD, plugin.take, HookType.BEFORE)


class CapturePlugin:
    """Takes the states of the requests that are Aerie's, in the process of tensor rank 0."""

    def __init__(self, spool: Spool, writer: RowWriter | None = None) -> None:
        self._spool, self._writer = spool, writer

    def prepare(self, result: None, runner: Any) -> None:
        """After the model is loaded and before any graph is captured: check, and set the layers.

        Raises:
            EngineError: the server is not one that can capture; it ends.
        """
        import sglang
        from sglang.srt.distributed.parallel_state import get_tensor_model_parallel_rank

        try:
            _refuse(runner)
            if not getattr(runner.server_args, "enable_return_aux_hidden_states", False):
                runner.model.set_eagle3_layers_to_capture(list(self._spool.sglang_config))
            _check_layers(runner.model, self._spool.hf_hidden_states)
        except AerieError as error:
            self._spool.report_failure(str(error))
            raise
        if get_tensor_model_parallel_rank() == 0:
            self._writer = RowWriter(self._spool, str(runner.device))
            details = {"sglang": sglang.__version__, "model": runner.server_args.model_path}
            self._spool.announce(details)
            log.info("aerie: states go to %s", self._spool.folder)

    def take(
        self,
        processor: Any,
        input_ids: "torch.Tensor | None",
        hidden_states: "torch.Tensor",
        lm_head: Any,
        logits_metadata: Any,
        aux_hidden_states: Any = None,
        *others: Any,
        **more: Any,
    ) -> None:
        """Before the logits of a batch: hand the rows of Aerie's requests to the writer.

        Raises:
            EngineError: a row is missing or there are no states; the server ends.
        """
        names = list(map(RequestName.parse, getattr(logits_metadata, "rids", None) or ()))
        if self._writer is None or not any(names) or not logits_metadata.forward_mode.is_extend():
            return
        try:
            segments, total = _segments(names, logits_metadata)
            if segments:
                rows = self._rows(logits_metadata.input_ids, aux_hidden_states, hidden_states)
                self._writer.put(_first(rows, total), segments)
        except AerieError as error:
            self._spool.report_failure(str(error))
            raise

    def _rows(self, ids: "torch.Tensor", aux: Any, last: "torch.Tensor") -> Rows:
        import torch

        if aux is None:
            raise EngineError("the target's forward pass gave no states of layers")
        # A tensor or a list of them, as the family of the target has it.
        joined = aux if isinstance(aux, torch.Tensor) else torch.cat(list(aux), dim=-1)
        widths = (joined.shape[-1], last.shape[-1])
        expected = (self._spool.aux_width, self._spool.hidden_size)
        if widths != expected:
            raise EngineError("states have other widths", saw=widths, expected=expected)
        return Rows(ids.to(torch.int32), joined.to(torch.bfloat16), last.to(torch.bfloat16))


def _refuse(runner: Any) -> None:
    """Stop a server in which rows would be missing, split or of another model.

    Raises:
        EngineError: it is one.
    """
    arguments = runner.server_args
    speculates = runner.is_draft_worker or not runner.spec_algorithm.is_none()
    reasons = {
        "--disable-radix-cache is missing: a cached row is computed by no forward pass": (
            not arguments.disable_radix_cache
        ),
        "speculation is on: its passes hold rows of rejected tokens": speculates,
        "pipeline parallelism is on: no rank sees all layers": arguments.pp_size != 1,
        "attention is data parallel: no rank sees all rows": arguments.enable_dp_attention,
    }
    found = [reason for reason, applies in reasons.items() if applies]
    if found:
        raise EngineError(
            "this server cannot capture states",
            saw="; ".join(found),
            remedy="start it with the arguments that docs/states.md gives",
        )


def _check_layers(model: Any, expected: tuple[int, ...]) -> None:
    """Check which layers the model will capture, in the convention of `hf_hidden_states`.

    SGLang reads a list that does not begin with 1 in one way for DeepSeek and Kimi and in another
    for all others (sgl-project/sglang #25454).

    Raises:
        EngineError: they are others, or cannot be seen.
    """
    found = [
        tuple(sorted(module.layers_to_capture))
        for module in model.modules()
        if getattr(module, "layers_to_capture", None)
    ]
    if set(found) != {expected}:
        raise EngineError(
            "the target would capture other layers than the draft is to be fed",
            saw=found or f"{type(model).__name__} does not say",
            expected=expected,
            remedy="let `states.layers` begin with 2: SGLang reads a draft's configuration by its "
            "first layer, and would be as wrong when it serves the draft",
        )


def _segments(names: list[RequestName | None], batch: Any) -> tuple[list[Segment], int]:
    """Where the rows of Aerie's requests are in a batch, and how many rows it has.

    A request that runs on when it has all of its tokens is being decoded beside prefills.
    """
    segments, start = [], 0
    spans = zip(names, batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, strict=True)
    for name, position, rows in spans:
        if name and position < name.tokens:
            segments.append(Segment(name, position, start, rows))
        start += rows
    return segments, start


def _first(rows: Rows, total: int) -> Rows:
    """The first `total` rows: what follows is padding."""
    counts = (len(rows.token_ids), len(rows.aux), len(rows.last))
    if min(counts) < total:
        raise EngineError("rows of a batch are missing", saw=counts, expected=total)
    return Rows(rows.token_ids[:total], rows.aux[:total], rows.last[:total])
