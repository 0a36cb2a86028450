"""Training-time test (arXiv 2503.01840, section 3.1), forward and backward, written out.

Step 0 reads the target's aux states; step i reads the output of step i-1 at the same row, with
the token i further on. A row of step i attends to step 0 of its own and earlier positions, and to
its own steps 1 to i: what serving sees when i draft tokens stand behind verified ones. Rows that
carry no label serve as keys at step 0 and are computed no further.

What writing it out saves (docs/training.md): the embedding's half of q, k and v is multiplied once
and read by all steps at their shift; q/k/v and gate/up are one product each; a weight's gradient
is one product over the rows of all steps, rounded once.

With `recompute` the MLP, which has the widest activations, is computed again in the backward pass
(activation checkpointing), and its weights' gradients are added up step by step.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from aerie.train.ops.interface import Operations, operations
from aerie.train.packing import Pack
from aerie.train.products import Products
from aerie.train.tape import Tape, new_tape
from aerie.train.weights import Matrices


def unroll(
    weights: Matrices, embedding: Tensor, pack: Pack, steps: int,
    products: Products | None = None, recompute: bool = False,
) -> Tape:  # fmt: skip
    """Run all steps on `pack`. `embedding` is the target's, [V, H].

    Rows that are not active at a step are computed all the same, so that shapes stay: they see no
    other sample's rows, and no one sees them.
    """
    ops, eps = operations(weights.norm_out), weights.config.norm_eps
    products = products or Products(weights)
    tape = new_tape(weights.config, embedding, pack, steps, weights.norm_out, recompute)
    at, split = pack.supervised, tape.first_queries.shape[1]
    rotated = split + (weights.qkv.shape[0] - split) // 2
    weights.acquire("fc", "norms")
    torch.mm(pack.aux.to(weights.dtype), weights.fc.t(), out=tape.features)
    weights.release("fc")
    torch.index_select(tape.features, 0, at, out=tape.hidden[0])
    ops.norm(tape.raw_embeds, weights.norm_embeds, eps, tape.embeds)
    weights.acquire("qkv")
    embeds_qkv = tape.embeds @ weights.qkv_embeds.t()
    # Rows behind the last one are read by rows that are active no more.
    shifted = F.pad(embeds_qkv[at], (0, 0, 0, steps - 1))
    for step in range(steps):
        rows, source = tape.rows(step), tape.hidden[step] if step else tape.features
        ops.norm(source, weights.norm_hidden, eps, tape.inputs[rows])
        base = shifted[step : step + len(source)] if step else embeds_qkv
        products.forward("qkv_hidden", tape.inputs[rows], tape.qkv[rows], base)
        turned = tape.qkv[rows, :rotated].unflatten(1, (-1, weights.config.head_dim))
        ops.rotate_(turned, tape.cos[rows], tape.sin[rows], inverse=False)
        if step == 0:
            torch.index_select(tape.qkv[rows, :split], 0, at, out=tape.first_queries)
        _layer(weights, products, tape, step, ops)
    return tape


def _layer(weights: Matrices, products: Products, tape: Tape, step: int, ops: Operations) -> None:
    attended, middle = tape.attended[step], tape.middle[step]
    weights.acquire("o", "gate_up", "down")
    ops.attention(
        tape.queries(step), *tape.shared(), tape.own(step), tape.pack.segments,
        attended, tape.log_totals[step],
    )  # fmt: skip
    products.forward("o", attended.flatten(1), middle, tape.hidden[step])
    activated = ops.gate(_gate_up(weights, products, tape, step, ops))
    products.forward("down", activated, tape.hidden[step + 1], middle)


def _gate_up(
    weights: Matrices, products: Products, tape: Tape, step: int, ops: Operations
) -> Tensor:
    inputs, gate_up = tape.mlp(step)
    ops.norm(tape.middle[step], weights.norm_mlp, weights.config.norm_eps, inputs)
    return products.forward("gate_up", inputs, gate_up)


def backward(
    weights: Matrices, gradient: Matrices, products: Products, tape: Tape, grads: Tensor
) -> None:
    """Write the gradient of every weight but the head and its norm into `gradient`.

    `grads` [steps, s, H] are the losses' gradients of `tape.outputs`. They and `tape.gate_up` are
    overwritten.
    """
    _Backward(weights, gradient, products, tape, grads).run()


class _Backward:
    def __init__(
        self, weights: Matrices, gradient: Matrices, products: Products, tape: Tape, grads: Tensor
    ) -> None:
        self.weights, self.gradient, self.tape, self.grads = weights, gradient, tape, grads
        self.products = products
        self.ops, self.eps = operations(weights.norm_out), weights.config.norm_eps
        self.qkv = torch.empty_like(tape.qkv)
        self.attended = torch.empty_like(tape.attended)
        self.deltas = torch.empty_like(tape.log_totals)
        self.middle = torch.empty_like(tape.middle)
        kept, s, width = tape.gate_up.shape
        self.activated = tape.gate_up.new_empty(kept, s, width // 2)
        keys, wide = tape.shared()[0], tape.log_totals.dtype
        self.keys, self.values = (torch.zeros_like(keys, dtype=wide) for _ in range(2))
        self.split = tape.first_queries.shape[1]
        self.norms = torch.zeros(3, tape.hidden.shape[2], dtype=wide, device=keys.device)

    def run(self) -> None:
        carried = None
        for step in reversed(range(self.tape.steps)):
            total = self.grads[step]
            if carried is not None:
                total += carried
            self._mlp(step, total)
            queries = self._attention(step)
            carried = self._projections(step, queries) if step else None
        self.weights.release("o", "gate_up", "down")
        self._first_step(queries)
        self._products()

    def _mlp(self, step: int, total: Tensor) -> None:
        weights, tape = self.weights, self.tape
        last = step + 1 == tape.steps
        if tape.recomputes and not last:
            _gate_up(weights, self.products, tape, step, self.ops)
        mlp_inputs, gate_up = tape.mlp(step)
        activated = self.activated[0 if tape.recomputes else step]
        self.ops.gate_backward_(gate_up, self.products.backward("down", total), activated)
        if tape.recomputes:
            self._add_mlp(total, activated, gate_up, mlp_inputs, anew=last)
        inputs = self.products.backward("gate_up", gate_up)
        self.norms[0] += self.ops.norm_backward(
            inputs, tape.middle[step], weights.norm_mlp, self.eps, total, self.middle[step]
        )

    def _add_mlp(
        self, total: Tensor, activated: Tensor, gate_up: Tensor, inputs: Tensor, anew: bool
    ) -> None:
        """Add one step to the gradients of the MLP's weights."""
        gradient = self.gradient
        if anew:
            gradient.acquire("gate_up", "down")
        for grads, rows, out in (
            (gate_up, inputs, gradient.gate_up),
            (total, activated, gradient.down),
        ):
            torch.addmm(out, grads.t(), rows, beta=0 if anew else 1, out=out)

    def _attention(self, step: int) -> Tensor:
        tape, attended = self.tape, self.attended[step]
        self.products.backward("o", self.middle[step], attended.flatten(1))
        queries, keys, values = self.ops.attention_backward(
            attended, tape.queries(step), *tape.shared(), tape.own(step),
            tape.attended[step], tape.log_totals[step], tape.pack.segments, self.deltas[step],
        )  # fmt: skip
        self.keys += keys
        self.values += values
        return queries.flatten(1)

    def _projections(self, step: int, queries: Tensor) -> Tensor:
        """The rest of a later step; returns the gradient of the step before's output."""
        tape, rows = self.tape, self.tape.rows(step)
        own = self.ops.own_backward(
            self.attended[step:], tape.later_queries(step), tape.own(step)[-1],
            tape.log_totals[step:], self.deltas[step:],
        )  # fmt: skip
        self.qkv[rows, : self.split] = queries
        self.qkv[rows, self.split :] = own.flatten(1)
        self._rotate_back(rows)
        inputs = self.products.backward("qkv_hidden", self.qkv[rows])
        carried = torch.empty_like(inputs)
        self.norms[1] += self.ops.norm_backward(
            inputs, tape.hidden[step], self.weights.norm_hidden, self.eps, self.middle[step],
            carried,
        )  # fmt: skip
        return carried

    def _first_step(self, queries: Tensor) -> None:
        tape, weights, gradient = self.tape, self.weights, self.gradient
        rows, at = tape.rows(0), tape.pack.supervised
        first = self.qkv[rows]
        first[:, : self.split] = 0
        first[:, : self.split].index_add_(0, at, queries)
        first[:, self.split :] = torch.cat((self.keys, self.values), dim=1).flatten(1)
        self._rotate_back(rows)
        inputs = self.products.backward("qkv_hidden", first)
        features = torch.empty_like(inputs)
        self.norms[1] += self.ops.norm_backward(
            inputs, tape.features, weights.norm_hidden, self.eps, None, features
        )
        features.index_add_(0, at, self.middle[0])
        gradient.acquire("fc")
        torch.mm(features.t(), tape.pack.aux.to(features.dtype), out=gradient.fc)
        gradient.release("fc")

    def _products(self) -> None:
        """The weights' gradients, each over the rows of all steps; the largest first, so that it is
        sent while the others are made.
        """
        tape, gradient = self.tape, self.gradient
        gradient.acquire("qkv")
        torch.mm(self.qkv.t(), tape.inputs, out=gradient.qkv_hidden)
        self._embeds()
        gradient.release("qkv")
        for part, grads, inputs, out in (
            ("o", self.middle, tape.attended.flatten(2), gradient.o),
            ("gate_up", tape.gate_up, tape.mlp_inputs, gradient.gate_up),
            ("down", self.grads, self.activated, gradient.down),
        ):
            if part == "o" or not tape.recomputes:
                gradient.acquire(part)
                torch.mm(grads.flatten(0, 1).t(), inputs.flatten(0, 1), out=out)
            gradient.release(part)
        gradient.acquire("norms")
        for norm, out in zip(
            self.norms, (gradient.norm_mlp, gradient.norm_hidden, gradient.norm_embeds), strict=True
        ):
            out.copy_(norm)
        gradient.release("norms")

    def _embeds(self) -> None:
        tape, weights, later = self.tape, self.weights, self.tape.rows(1).start
        first = self.qkv[:later]
        if tape.steps > 1:
            shifted = self.qkv[later:].unflatten(0, (tape.steps - 1, -1))
            first.index_add_(0, tape.pack.supervised, self.ops.shifted_sum(shifted))
        torch.mm(first.t(), tape.embeds, out=self.gradient.qkv_embeds)
        embeds = first @ weights.qkv_embeds
        self.norms[2] += self.ops.norm_backward(
            embeds, tape.raw_embeds, weights.norm_embeds, self.eps, None, torch.empty_like(embeds)
        )
        weights.release("qkv", "norms")

    def _rotate_back(self, rows: slice) -> None:
        tape, width = self.tape, self.tape.config.head_dim
        rotated = self.split + tape.config.kv_heads * width
        turned = self.qkv[rows, :rotated].unflatten(1, (-1, width))
        self.ops.rotate_(turned, tape.cos[rows], tape.sin[rows], inverse=True)
