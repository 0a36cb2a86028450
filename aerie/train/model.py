"""The EAGLE-3 draft: one decoder layer over the target's states (arXiv 2503.01840, section 3).

Row p takes the target's aux states at position p and the embedding of token p+1, and proposes
token p+2. Names and residual order are those of SGLang's `models/llama_eagle3.py`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aerie.contracts.draft import DraftConfig
from aerie.train.rope import attention_factor, inverse_frequencies


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32 at least, as the target's."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weight).to(x.dtype)


class Attention(nn.Module):
    """Projections of the layer's attention; their input is twice as wide as the hidden size."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        width = 2 * config.hidden_size
        self.q_proj = nn.Linear(width, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=False)


class MLP(nn.Module):
    """Gated SiLU."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """The parameters of the one decoder layer, under the names of the checkpoint."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config)
        self.mlp = MLP(config)


class Draft(nn.Module):
    """The trainable draft. The embedding is the target's own and is passed in, never trained."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.aux_width, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.inverse_frequencies = inverse_frequencies(
            config.rope, config.head_dim, torch.device("cpu")
        )
        self.attention_factor = attention_factor(config.rope)

    def reduce(self, states: Tensor) -> Tensor:
        """Reduce aux states [n, A*H] to the layer's hidden input [n, H].

        States that are H wide already skip `fc`: that is what SGLang does, and how a server that
        was started with EAGLE instead of EAGLE3 loses the draft in silence. The accept gate is
        what catches it; hiding it here would make the embedded engine kinder than production.
        """
        states = states.to(self.fc.weight.dtype)
        if states.shape[-1] == self.config.hidden_size:
            return states
        reduced: Tensor = self.fc(states)
        return reduced

    def fuse(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """The attention's input [n, 2H] from token embeddings and hidden states, both [n, H]."""
        layer = self.midlayer
        return torch.cat((layer.input_layernorm(embeds), layer.hidden_norm(hidden)), dim=-1)

    def queries(self, fused: Tensor, positions: Tensor) -> Tensor:
        """Rotated queries [n, heads, head_dim]."""
        q = self.midlayer.self_attn.q_proj(fused)
        return self._rotate(q.unflatten(-1, (-1, self.config.head_dim)), positions)

    def keys_values(self, fused: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, both [n, kv_heads, head_dim]."""
        attention = self.midlayer.self_attn
        k = attention.k_proj(fused).unflatten(-1, (-1, self.config.head_dim))
        v = attention.v_proj(fused).unflatten(-1, (-1, self.config.head_dim))
        return self._rotate(k, positions), v

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [n, H] from its hidden input [n, H] and [n, heads, head_dim].

        This un-normed output is the next step's hidden input; `logits` norms it.
        """
        layer = self.midlayer
        hidden = hidden + layer.self_attn.o_proj(attended.flatten(-2))
        out: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return out

    def logits(self, output: Tensor) -> Tensor:
        """Logits over the map [n, K] of the layer's output [n, H]."""
        scores: Tensor = self.lm_head(self.norm(output))
        return scores

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].to(torch.float64) * self.inverse_frequencies.to(x.device)
        cos, sin = (
            (f(angles) * self.attention_factor)[:, None, :].to(x.dtype)
            for f in (torch.cos, torch.sin)
        )
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of [a, heads, d] over all keys and values [n, kv, d]; returns [a, heads, d]."""
    heads, width = queries.shape[1:]
    grouped = queries.unflatten(1, (keys.shape[1], heads // keys.shape[1])) * width**-0.5
    scores = torch.einsum("akgd,nkd->kgan", grouped, keys)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    shares = wide.softmax(-1).to(values.dtype)
    return torch.einsum("kgan,nkd->akgd", shares, values).flatten(1, 2)


def load_weights(draft: Draft, tensors: Mapping[str, Tensor]) -> None:
    """Put the checkpoint's tensors, without the map's, into `draft`."""
    weights = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    draft.load_state_dict(weights)
