"""What the forward pass of training-time test leaves to the backward pass, in fixed buffers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.draft import DraftConfig
from aerie.train.packing import Pack
from aerie.train.rope import attention_factor, inverse_frequencies


@dataclass(frozen=True)
class Tape:
    """n rows, s of them supervised, and m = n + (steps-1) s projections: of all rows at step 0, of
    the supervised ones at each later step.

    raw_embeds and embeds [n, H], before and after the norm; features [n, H], the output of `fc`;
    inputs [m, H], the normed hidden states; qkv [m, (heads + 2 kv) d], rotated; cos and sin
    [m, d/2]; first_queries [s, heads d], step 0's; hidden [steps+1, s, H], each step's input and
    the last output; attended [steps, s, heads, d] and log_totals, wide [steps, heads, s]; middle
    [steps, s, H], between attention and MLP; mlp_inputs [kept, s, H]; gate_up [kept, s, 2I], of all
    steps, or of the one that was computed last where the backward pass computes them again.
    """

    config: DraftConfig
    pack: Pack
    raw_embeds: Tensor
    embeds: Tensor
    features: Tensor
    inputs: Tensor
    qkv: Tensor
    cos: Tensor
    sin: Tensor
    first_queries: Tensor
    hidden: Tensor
    attended: Tensor
    log_totals: Tensor
    middle: Tensor
    mlp_inputs: Tensor
    gate_up: Tensor

    @property
    def outputs(self) -> Tensor:
        """The un-normed output of each step, [steps, s, H]."""
        return self.hidden[1:]

    @property
    def steps(self) -> int:
        """Number of training-time-test steps."""
        return len(self.attended)

    @property
    def recomputes(self) -> bool:
        """Whether the MLP is computed again in the backward pass."""
        return len(self.gate_up) < self.steps

    def mlp(self, step: int) -> tuple[Tensor, Tensor]:
        """Where the step's MLP has its input [s, H], and gate and up [s, 2I]."""
        slot = 0 if self.recomputes else step
        return self.mlp_inputs[slot], self.gate_up[slot]

    def rows(self, step: int) -> slice:
        """The step's rows among the m."""
        n, s = len(self.features), self.hidden.shape[1]
        return slice(n + (step - 1) * s, n + step * s) if step else slice(0, n)

    def queries(self, step: int) -> Tensor:
        """The supervised rows' queries, [s, heads, d]."""
        heads, width = self.config.heads, self.config.head_dim
        flat = self.qkv[self.rows(step), : heads * width] if step else self.first_queries
        return flat.view(len(flat), heads, width)

    def later_queries(self, step: int) -> Tensor:
        """The queries of `step` >= 1 and all after it, [steps - step, s, heads, d]."""
        config, s = self.config, self.hidden.shape[1]
        flat = self.qkv[self.rows(step).start :, : config.heads * config.head_dim]
        return flat.view(-1, s, config.heads, config.head_dim)

    def shared(self) -> tuple[Tensor, Tensor]:
        """Keys and values of step 0, which all later positions see, each [n, kv, d]."""
        keys, values = _keys_values(self.qkv[self.rows(0)], self.config).unbind(1)
        return keys, values

    def own(self, step: int) -> Tensor:
        """Keys and values that steps 1 to `step` made, [step, s, 2, kv, d]."""
        s = self.hidden.shape[1]
        start = self.rows(1).start
        some = self.qkv[start : start + step * s]
        keys_values = _keys_values(some, self.config)
        return keys_values.view(step, s, *keys_values.shape[1:])


def _keys_values(qkv: Tensor, config: DraftConfig) -> Tensor:
    flat = qkv[:, config.heads * config.head_dim :]
    return flat.view(len(flat), 2, config.kv_heads, config.head_dim)


def new_tape(
    config: DraftConfig, embedding: Tensor, pack: Pack, steps: int, like: Tensor,
    recompute: bool = False,
) -> Tape:  # fmt: skip
    """An empty tape in the dtype and on the device of `like`, with embeddings and angles filled."""
    kept = 1 if recompute else steps
    n, s, hidden = len(pack.token_ids), len(pack.supervised), config.hidden_size
    rows, split = n + (steps - 1) * s, config.heads * config.head_dim
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    later = [pack.positions[pack.supervised] + step for step in range(1, steps)]
    positions = torch.cat((pack.positions, *later)).double()
    angles = positions[:, None] * inverse_frequencies(config.rope, config.head_dim, like.device)
    factor = attention_factor(config.rope)
    raw = embedding[pack.token_ids].to(like.dtype)
    return Tape(
        config=config,
        pack=pack,
        raw_embeds=raw,
        embeds=torch.empty_like(raw),
        features=like.new_empty(n, hidden),
        inputs=like.new_empty(rows, hidden),
        qkv=like.new_empty(rows, split + 2 * config.kv_heads * config.head_dim),
        cos=(angles.cos() * factor).to(wide),
        sin=(angles.sin() * factor).to(wide),
        first_queries=like.new_empty(s, split),
        hidden=like.new_empty(steps + 1, s, hidden),
        attended=like.new_empty(steps, s, config.heads, config.head_dim),
        log_totals=like.new_empty(steps, config.heads, s, dtype=wide),
        middle=like.new_empty(steps, s, hidden),
        mlp_inputs=like.new_empty(kept, s, hidden),
        gate_up=like.new_empty(kept, s, 2 * config.intermediate_size),
    )
