"""Triton kernels of the fused operations. They reduce in float32 and hold one row, or one block of
heads of a row, in registers. Widths of heads are powers of two; other widths are masked.
"""

import triton
import triton.language as tl


@triton.jit
def norm(x, weight, out, width, eps, block: tl.constexpr):
    """One row a program: out = x / rms(x) * weight."""
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, block)
    inside = at < width
    value = tl.load(x + row + at, inside, 0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    scale = tl.load(weight + at, inside, 0).to(tl.float32)
    tl.store(out + row + at, value * inverse * scale, inside)


@triton.jit
def norm_backward(
    grad, x, weight, residual, out, partial, rows, width,
    eps, has_residual: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Each program takes every k-th row and keeps its share of the weight's gradient."""
    at = tl.arange(0, block)
    inside = at < width
    scale = tl.load(weight + at, inside, 0).to(tl.float32)
    total = tl.zeros([block], tl.float32)
    for number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = number * width
        value = tl.load(x + row + at, inside, 0).to(tl.float32)
        dy = tl.load(grad + row + at, inside, 0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
        scaled = value * inverse
        total += dy * scaled
        inner = dy * scale
        result = inverse * (inner - scaled * (tl.sum(inner * scaled, 0) / width))
        if has_residual:
            result += tl.load(residual + row + at, inside, 0).to(tl.float32)
        tl.store(out + row + at, result, inside)
    tl.store(partial + tl.program_id(0) * width + at, total, inside)


@triton.jit
def rotate(
    x, cos, sin, stride, heads, sign, half: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """One block of heads of one row a program, in place."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * block + tl.arange(0, block)[:, None]
    at = tl.arange(0, half)[None, :]
    c = tl.load(cos + row * half + at)
    s = tl.load(sin + row * half + at) * sign
    place = x + row * stride + head * (2 * half) + at
    inside = head < heads
    first = tl.load(place, inside, 0).to(tl.float32)
    second = tl.load(place + half, inside, 0).to(tl.float32)
    tl.store(place, first * c - second * s, inside)
    tl.store(place + half, second * c + first * s, inside)


@triton.jit
def quantise(
    x, out, scales, stride, width, largest, smallest, block: tl.constexpr,
):  # fmt: skip
    """One row a program, which it reads twice: the largest element, then all by that scale."""
    row = tl.program_id(0).to(tl.int64)
    tops = tl.zeros([block], tl.float32)
    for start in range(0, width, block):
        at = start + tl.arange(0, block)
        value = tl.load(x + row * stride + at, at < width, 0).to(tl.float32)
        tops = tl.maximum(tops, tl.abs(value))
    scale = tl.maximum(tl.max(tops, 0), smallest) / largest
    tl.store(scales + row, scale)
    for start in range(0, width, block):
        at = start + tl.arange(0, block)
        value = tl.load(x + row * stride + at, at < width, 0).to(tl.float32)
        tl.store(out + row * width + at, (value / scale).to(tl.float8e4nv), at < width)


@triton.jit
def gate(gate_up, out, width, block: tl.constexpr):
    """out = silu(gate) * up, one block of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    place = gate_up + row * 2 * width + at
    gated = tl.load(place, inside, 0).to(tl.float32)
    up = tl.load(place + width, inside, 0).to(tl.float32)
    tl.store(out + row * width + at, gated * tl.sigmoid(gated) * up, inside)


@triton.jit
def gate_backward(gate_up, grad, activated, width, block: tl.constexpr):
    """Gradients of gate and up in their place; what `gate` gave, once more."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    place = gate_up + row * 2 * width + at
    gated = tl.load(place, inside, 0).to(tl.float32)
    up = tl.load(place + width, inside, 0).to(tl.float32)
    dy = tl.load(grad + row * width + at, inside, 0).to(tl.float32)
    share = tl.sigmoid(gated)
    silu = gated * share
    tl.store(place, dy * up * share * (1 + gated - silu), inside)
    tl.store(place + width, dy * silu, inside)
    tl.store(activated + row * width + at, silu * up, inside)


@triton.jit
def shifted_sum(grads, out, steps, rows, width, block: tl.constexpr):
    """out[r] = sum over i of grads[i][r - i - 1]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    total = tl.zeros([block], tl.float32)
    place = grads + (row - 1) * width + at
    for step in range(steps):
        total += tl.load(place, inside & (row > step), 0).to(tl.float32)
        place += (rows - 1) * width
    tl.store(out + row * width + at, total, inside)


@triton.jit
def merge_own(
    queries, own, attended, log_total, q_stride, own_step,
    own_row, steps, rows, kv_heads, scale, group: tl.constexpr,
    width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Add a row's own later keys and values to attention over the shared ones."""
    row = tl.program_id(0).to(tl.int64)
    kv = tl.program_id(1) * block + tl.arange(0, block)
    at = tl.arange(0, width)[None, :]
    inside = kv < kv_heads
    mask = inside[:, None]
    for member in range(group):
        head = kv * group + member
        query = tl.load(queries + row * q_stride + head[:, None] * width + at, mask, 0)
        query = query.to(tl.float32) * scale
        place = attended + (row * kv_heads * group + head[:, None]) * width + at
        out = tl.load(place, mask, 0).to(tl.float32)
        shared = tl.load(log_total + head * rows + row, inside, 0)
        # A row that sees nothing comes with plus infinity.
        top = tl.where(shared == float("inf"), float("-inf"), shared)
        total = tl.where(shared == float("inf"), 0.0, 1.0)
        base = own + row * own_row
        for _ in range(steps):
            key = tl.load(base + kv[:, None] * width + at, mask, 0).to(tl.float32)
            value = tl.load(base + (kv_heads + kv[:, None]) * width + at, mask, 0).to(tl.float32)
            score = tl.sum(query * key, 1)
            new_top = tl.maximum(top, score)
            kept, added = tl.exp(top - new_top), tl.exp(score - new_top)
            out = out * (total * kept / (total * kept + added))[:, None]
            total = total * kept + added
            out += value * (added / total)[:, None]
            top = new_top
            base += own_step
        tl.store(place, out, mask)
        tl.store(log_total + head * rows + row, top + tl.log(total), inside)


@triton.jit
def own_queries(
    grads, queries, own, attended, log_total, out, delta,
    q_stride, own_step, own_row, steps, rows, kv_heads, scale,
    group: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """delta = sum(grad * attended); add what own keys give to the queries' gradient."""
    row = tl.program_id(0).to(tl.int64)
    kv = tl.program_id(1) * block + tl.arange(0, block)
    at = tl.arange(0, width)[None, :]
    inside = kv < kv_heads
    mask = inside[:, None]
    for member in range(group):
        head = kv * group + member
        place = (row * kv_heads * group + head[:, None]) * width + at
        dy = tl.load(grads + place, mask, 0).to(tl.float32)
        query = tl.load(queries + row * q_stride + head[:, None] * width + at, mask, 0)
        query = query.to(tl.float32)
        inner = tl.sum(dy * tl.load(attended + place, mask, 0).to(tl.float32), 1)
        tl.store(delta + head * rows + row, inner, inside)
        total = tl.load(log_total + head * rows + row, inside, 0)
        result = tl.load(out + place, mask, 0).to(tl.float32)
        base = own + row * own_row
        for _ in range(steps):
            key = tl.load(base + kv[:, None] * width + at, mask, 0).to(tl.float32)
            value = tl.load(base + (kv_heads + kv[:, None]) * width + at, mask, 0).to(tl.float32)
            share = tl.exp(tl.sum(query * key, 1) * scale - total)
            slope = share * (tl.sum(dy * value, 1) - inner) * scale
            result += key * slope[:, None]
            base += own_step
        tl.store(out + place, result, mask)


@triton.jit
def own_keys(
    grads, queries, own, log_totals, deltas, out, q_step,
    q_row, own_row, steps, rows, kv_heads, scale,
    group: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradient of one step's own keys and values, from all steps that saw them."""
    row = tl.program_id(0).to(tl.int64)
    kv = tl.program_id(1) * block + tl.arange(0, block)
    at = tl.arange(0, width)[None, :]
    inside = kv < kv_heads
    mask = inside[:, None]
    base = own + row * own_row
    key = tl.load(base + kv[:, None] * width + at, mask, 0).to(tl.float32)
    value = tl.load(base + (kv_heads + kv[:, None]) * width + at, mask, 0).to(tl.float32)
    key_grad = tl.zeros([block, width], tl.float32)
    value_grad = tl.zeros([block, width], tl.float32)
    heads = kv_heads * group
    grads += row * heads * width
    queries += row * q_row
    for step in range(steps):
        for member in range(group):
            head = kv * group + member
            place = head[:, None] * width + at
            dy = tl.load(grads + place, mask, 0).to(tl.float32)
            query = tl.load(queries + place, mask, 0).to(tl.float32)
            side = (step * heads + head) * rows + row
            total = tl.load(log_totals + side, inside, 0)
            inner = tl.load(deltas + side, inside, 0)
            share = tl.exp(tl.sum(query * key, 1) * scale - total)
            slope = share * (tl.sum(dy * value, 1) - inner) * scale
            key_grad += query * slope[:, None]
            value_grad += dy * share[:, None]
        grads += rows * heads * width
        queries += q_step
    place = out + row * 2 * kv_heads * width
    tl.store(place + kv[:, None] * width + at, key_grad, mask)
    tl.store(place + (kv_heads + kv[:, None]) * width + at, value_grad, mask)


@triton.jit
def cross_entropy(
    logits, shares, source, weights, labels, losses, hits,
    width, block: tl.constexpr,
):  # fmt: skip
    """One row a program: loss, hit, and the gradient in place of the logits."""
    row = tl.program_id(0).to(tl.int64)
    weight = tl.load(weights + row)
    at = tl.arange(0, block)
    place = logits + row * width
    if weight == 0:
        for start in range(0, width, block):
            tl.store(place + start + at, tl.zeros([block], tl.float32), start + at < width)
        tl.store(losses + row, 0.0)
        tl.store(hits + row, 0)
        return
    teacher = shares + tl.load(source + row) * width
    top, best = float("-inf"), 0
    total, dot = 0.0, 0.0
    for start in range(0, width, block):
        inside = start + at < width
        value = tl.load(place + start + at, inside, float("-inf")).to(tl.float32)
        share = tl.load(teacher + start + at, inside, 0)
        block_top, block_best = tl.max(value, 0, return_indices=True)
        best = tl.where(block_top > top, start + block_best, best)
        new_top = tl.maximum(top, block_top)
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(value - new_top), 0)
        dot += tl.sum(tl.where(inside, share * value, 0.0), 0)
        top = new_top
    log_total = top + tl.log(total)
    tl.store(losses + row, log_total - dot)
    tl.store(hits + row, (best == tl.load(labels + row)).to(tl.int8))
    for start in range(0, width, block):
        inside = start + at < width
        value = tl.load(place + start + at, inside, 0).to(tl.float32)
        share = tl.load(teacher + start + at, inside, 0)
        tl.store(place + start + at, (tl.exp(value - log_total) - share) * weight, inside)


@triton.jit
def adamw(
    master, first, second, gradient, products, scalars, size,
    rate, beta1, beta2, decay, eps, block: tl.constexpr,
):  # fmt: skip
    """One block a program; nothing is touched if the step is not taken."""
    if tl.load(scalars + 2) == 0:
        return
    factor, number = tl.load(scalars), tl.load(scalars + 1)
    correction1 = 1 - tl.exp(number * tl.log(beta1))
    correction2 = 1 - tl.exp(number * tl.log(beta2))
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < size
    weight = tl.load(master + at, inside, 0)
    grad = tl.load(gradient + at, inside, 0).to(tl.float32) * factor
    one = tl.load(first + at, inside, 0)
    two = tl.load(second + at, inside, 0)
    one += (grad - one) * (1 - beta1)
    two = two * beta2 + grad * grad * (1 - beta2)
    weight -= rate * decay * weight
    weight -= rate / correction1 * one / (tl.sqrt(two / correction2) + eps)
    tl.store(master + at, weight, inside)
    tl.store(first + at, one, inside)
    tl.store(second + at, two, inside)
    tl.store(products + at, weight, inside)
