"""Where the keys and values of a model lie in blocks, and copies between blocks and the tensors of a cache.

A part of ashlar.torch.
"""

from __future__ import annotations

import typing

import torch


class Place(typing.NamedTuple):
    """Where a layer has its keys and values in G1: views of the shape (blocks, tokens, heads, dim)."""

    keys: torch.Tensor
    values: torch.Tensor


def block_shape(shapes: typing.Sequence[typing.Tuple[typing.Tuple[int, int], typing.Tuple[int, int]]],
                 tokens: int) -> typing.Tuple[int, ...]:
    """The shape of a block, from (heads, dim) of the keys and values of every layer."""
    (heads, key_dim), (value_heads, value_dim) = shapes[0]
    if any(shape != shapes[0] for shape in shapes) or heads != value_heads:
        return (1, 1, tokens, 1, sum(heads * dim for shape in shapes for heads, dim in shape))
    if key_dim == value_dim:
        return (len(shapes), 2, tokens, heads, key_dim)
    return (len(shapes), 1, tokens, heads, key_dim + value_dim)


def places_of(memory: torch.Tensor, shapes: typing.Sequence) -> typing.List[Place]:
    """Where each layer has its keys and values in memory of that shape."""
    _, layers, outer, _, _, _ = memory.shape
    (_, key_dim), _ = shapes[0]
    if outer == 2:
        return [Place(memory[:, layer, 0], memory[:, layer, 1]) for layer in range(layers)]
    if layers == len(shapes) and shapes[0][0][0] == memory.shape[4]:
        return [Place(memory[:, layer, 0, :, :, :key_dim], memory[:, layer, 0, :, :, key_dim:])
                for layer in range(layers)]
    views, start = [], 0
    for shape in shapes:
        for heads, dim in shape:
            piece = memory[:, 0, 0, :, 0, start:start + heads * dim]
            views.append(piece.unflatten(-1, (heads, dim)))
            start += heads * dim
    return [Place(keys, values) for keys, values in zip(views[::2], views[1::2])]


def blocks_for(tokens: int, size: int) -> int:
    return -(-max(0, tokens) // size)


def _wide(view: torch.Tensor) -> torch.Tensor:
    """The same bytes in the widest elements that fit: copies then run at the speed of the memory."""
    ratio = 8 // view.element_size()
    if ratio < 2 or view.shape[-1] % ratio or view.storage_offset() % ratio or view.stride(-1) != 1:
        return view
    if any(stride % ratio for stride in view.stride()[:-1]):
        return view
    return view.view(torch.int64)


def gather(place: torch.Tensor, tables: typing.Sequence[torch.Tensor], padding: typing.Sequence[int],
            length: int, device: torch.device) -> torch.Tensor:
    """The tokens of the blocks of each row, [batch, heads, length, dim]; zeros where a row is padded."""
    _, size, heads, _ = place.shape
    by_head = _wide(place).permute(2, 0, 1, 3)
    rows = []
    for ids, skipped in zip(tables, padding):
        count = max(0, length - skipped)
        row = by_head.index_select(1, ids[:blocks_for(count, size)]).flatten(1, 2).view(place.dtype)
        row = row[:, :count].to(device)
        rows.append(torch.nn.functional.pad(row, (0, 0, length - count, 0)) if count < length else row)
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)


def scatter(place: torch.Tensor, ids: torch.Tensor, states: torch.Tensor) -> None:
    """Writes [heads, tokens, dim] into the blocks."""
    blocks = states.to(place.device).unflatten(1, (len(ids), place.shape[1])).permute(1, 2, 0, 3).contiguous()
    _wide(place).index_copy_(0, ids, _wide(blocks))


def wait_for(memory: torch.Tensor) -> None:
    if memory.device.type == "cuda":
        torch.cuda.current_stream(memory.device).synchronize()
