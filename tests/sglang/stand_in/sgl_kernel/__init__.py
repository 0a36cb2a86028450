"""TEST DOUBLE of SGLang's compiled kernels for the CPU: the few that chains of a draft need.

SGLang's kernels for the CPU are in no package of the index. What is here computes the same in
plain torch, slowly, for chains (`--speculative-eagle-topk 1`), so that tests run a real SGLang on
any machine. Semantics follow the Triton kernels of SGLang 0.5.23 that do the same on a GPU:
`kernels/ops/speculative/{cache_locs,eagle,spec_tree,multi_layer_eagle}.py`, `kernels/ops/kvcache/
cache_move.py` and `srt/mem_cache/allocation.py`. Nothing outside the tests may import this.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

import sgl_kernel.attention  # noqa: F401  registers torch.ops.sgl_kernel.*


def __getattr__(name: str) -> Any:
    """Any kernel that is not here: it can be imported, and says so when it is called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError(f"the stand-in for SGLang's kernels has no {name}")

    return missing


def assign_req_to_token_pool_cpu(
    requests: Tensor, table: Tensor, starts: Tensor, ends: Tensor, locations: Tensor, _width: int
) -> None:
    """Write each request's new cache locations into its row of the table."""
    done = 0
    for row, start, end in _rows(requests, starts, ends):
        table[row, start:end] = locations[done : done + end - start].to(table.dtype)
        done += end - start


def assign_extend_cache_locs_cpu(
    requests: Tensor, table: Tensor, starts: Tensor, ends: Tensor, locations: Tensor, _width: int
) -> None:
    """Read cache locations start to end of each request's row, joined."""
    done = 0
    for row, start, end in _rows(requests, starts, ends):
        locations[done : done + end - start] = table[row, start:end].to(locations.dtype)
        done += end - start


def assign_draft_cache_locs_contiguous_cpu(
    requests: Tensor,
    table: Tensor,
    lengths: Tensor,
    locations: Tensor,
    _width: int,
    topk: int,
    steps: int,
) -> None:
    """Read the cache locations after each request's end: `topk * steps` of them."""
    count = topk * steps
    for number, (row, start) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        part = table[row, start : start + count]
        locations[number * count : (number + 1) * count] = part.to(locations.dtype)


def build_draft_decode_metadata_cpu(
    table: Tensor, requests: Tensor, lengths: Tensor, topk: int, steps: int, width: int
) -> Tensor:
    """A row of cache locations for each candidate: the prefix, then the candidate's own slots."""
    rows = table[requests].repeat_interleave(topk, 0).clone()
    for number, (row, start) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        for candidate in range(topk):
            own = start + candidate * steps
            count = max(min(steps, width - own), 0)
            rows[number * topk + candidate, start : start + count] = table[row, own : own + count]
    return rows


def fill_bonus_tokens_cpu(accepted: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    """The last accepted token of each request."""
    rows = torch.arange(lengths.shape[0])
    bonus[: lengths.shape[0]] = accepted.flatten()[rows * stride + lengths.long() - 1].to(
        bonus.dtype
    )


def fill_accept_out_cache_loc_cpu(index: Tensor, locations: Tensor, out: Tensor) -> None:
    """The cache locations of the accepted tokens, packed."""
    kept = index.flatten()
    kept = kept[kept > -1].long()
    out[: len(kept)] = locations[kept].to(out.dtype)


def build_tree_kernel_efficient_cpu(
    _parents: Tensor,
    selected: Tensor,
    lengths: Tensor,
    _mask: Tensor,
    positions: Tensor,
    index: Tensor,
    following: Tensor,
    sibling: Tensor,
    topk: int,
    _depth: int,
    tokens: int,
    _mode: int,
) -> None:
    """A chain: token i + 1 follows token i. The mask is not read where topk is 1."""
    if topk != 1:
        raise NotImplementedError("the stand-in builds chains only: --speculative-eagle-topk 1")
    batch = selected.shape[0]
    steps = torch.arange(tokens)
    positions.copy_((lengths[:, None] + steps).flatten()[: positions.numel()])
    index.copy_(torch.arange(batch * tokens).view(batch, tokens))
    following.copy_(torch.where(steps < tokens - 1, steps + 1, -1).expand(batch, tokens))
    sibling.fill_(-1)


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Keep the draft tokens that the target would have chosen, and add its own next one."""
    says = target_predict.flatten()
    for row in range(candidates.shape[0]):
        last, place, kept = int(retrive_index[row, 0]), 0, 0
        accept_index[row, 0] = last
        while kept + 1 < accept_index.shape[1]:
            place = int(retrive_next_token[row, place])
            while place != -1 and candidates[row, place] != says[last]:
                place = int(retrive_next_sibling[row, place])
            if place == -1:
                break
            predicts[last] = says[last]
            last, kept = int(retrive_index[row, place]), kept + 1
            accept_index[row, kept] = last
        accept_token_num[row] = kept
        predicts[last] = says[last]


def rotate_input_ids_cpu(
    ids: Tensor, starts: Tensor, lengths: Tensor, fresh: Tensor, select: Tensor | None
) -> None:
    """Shift each request's ids one to the left and put its fresh token at the end."""
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if length:
            ids[start : start + length - 1] = ids[start + 1 : start + length].clone()
            ids[start + length - 1 if select is None else int(select[row])] = fresh[row]


def copy_all_layer_kv_cache_cpu(
    pointers: Tensor, strides: Tensor, targets: Tensor, sources: Tensor
) -> None:
    """Copy cache rows from `sources` to `targets` in every layer's buffer, given by address."""
    moves = list(zip(targets.tolist(), sources.tolist(), strict=True))
    for base, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + source * stride, stride) for _, source in moves]
        for (target, _), row in zip(moves, rows, strict=True):
            ctypes.memmove(base + target * stride, row, stride)


def _rows(requests: Tensor, starts: Tensor, ends: Tensor) -> list[tuple[int, int, int]]:
    return list(zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True))
