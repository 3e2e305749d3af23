"""Copies between the pages of an engine's KV cache and the slots of G2. Needs torch.

A page is one block of one tensor. A slot has the pages of one chunk (one or several blocks) of every tensor
and rank, one behind the other, at places that the layout alone decides: the same in every process.

Thread safety: one thread at a time per object.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ashlar import _native

_log = logging.getLogger("vllm.ashlar")


class Piece(NamedTuple):
    """Bytes of a page and their place in the first block of a slot."""

    tensor: int
    in_page: int
    in_slot: int
    size: int
    block_stride: int  # from one block of a chunk to the next, in the slot
    writers: int = 1  # how many ranks have the same bytes
    writer: int = 0  # which of them this is


class PageCopier:
    """Copies blocks of tensors of the shape (blocks, bytes), on the host or on a CUDA device."""

    # Of device memory: what one batch may take.
    STAGING = 64 << 20
    ALREADY_REGISTERED = 712  # by another user of the same memory

    def __init__(self, tensors: Sequence[torch.Tensor], groups: Sequence[Sequence[Piece]], slots: np.ndarray,
                 blocks_per_chunk: int = 1):
        self._tensors = list(tensors)
        self._groups = [list(group) for group in groups]
        self._slots = slots
        self._chunk = blocks_per_chunk
        self._device = self._tensors[0].device if self._tensors else torch.device("cpu")
        for tensor in self._tensors:
            if tensor.dtype != torch.int8 or tensor.dim() != 2 or tensor.stride(1) != 1:
                raise ValueError(f"a tensor of {tensor.dtype} with strides {tensor.stride()}: pages must be "
                                 "rows of bytes")
            if tensor.device != self._device:
                raise ValueError(f"tensors on {self._device} and {tensor.device}: they must be on one device")
        for group in self._groups:
            for piece in group:
                end = piece.in_slot + (self._chunk - 1) * piece.block_stride + piece.size
                if end > slots.shape[1] or piece.in_page + piece.size > self._tensors[piece.tensor].shape[1]:
                    raise ValueError(f"{piece} does not fit into a slot of {slots.shape[1]} bytes")
        if self._device.type != "cpu":
            self._rows = torch.from_numpy(slots.view(np.int8))
            runtime = torch.cuda.cudart()
            error = int(runtime.cudaHostRegister(slots.ctypes.data, slots.nbytes, 0))
            self._pinned = error == 0
            if error not in (0, self.ALREADY_REGISTERED):
                _log.warning("%d bytes of G2 are not page-locked (CUDA error %d): copies will be slow; give "
                             "the process more lockable memory (ulimit -l) or a smaller G2", slots.nbytes,
                             error)

    def close(self) -> None:
        """Ends what the device knows of the slots."""
        if self._device.type != "cpu" and self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._slots.ctypes.data)
            self._pinned = False

    def places(self, block_ids: np.ndarray, group_sizes: Sequence[int], first_blocks: Sequence[int],
               slots: Sequence[int]) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """For each group with blocks: its number, its blocks, the slot of each, and its place in the chunk.

        The blocks of a group follow each other, the first one at the place that first_blocks gives.
        """
        block_ids = np.asarray(block_ids, np.int64)
        all_slots = np.asarray(slots, np.int64)
        if block_ids.size and (block_ids.min() < 0 or block_ids.max() >= self._tensors[0].shape[0]):
            raise ValueError(f"blocks {block_ids.min()} to {block_ids.max()} of "
                             f"{self._tensors[0].shape[0]}")
        if all_slots.size and (all_slots.min() < 0 or all_slots.max() >= self._slots.shape[0]):
            raise ValueError(f"slots {all_slots.min()} to {all_slots.max()} of {self._slots.shape[0]}")
        out = []
        block = slot = 0
        for group, size in enumerate(group_sizes):
            if size == 0:
                continue
            skip = first_blocks[group] % self._chunk if self._chunk > 1 else 0
            within = np.arange(skip, skip + size)
            chunks = int(-(-(skip + size) // self._chunk))
            if slot + chunks > all_slots.size:
                raise ValueError(f"{all_slots.size} slots for {block_ids.size} blocks in chunks of "
                                 f"{self._chunk}")
            out.append((group, block_ids[block:block + size], all_slots[slot + within // self._chunk],
                        within % self._chunk))
            block += size
            slot += chunks
        if slot != all_slots.size or block != block_ids.size:
            raise ValueError(f"{all_slots.size} slots and {block_ids.size} blocks, of which {slot} and "
                             f"{block} belong together")
        return out

    def is_whole(self, places: list) -> bool:
        """Whether every slot gets all blocks of its chunk."""
        return all(within[0] == 0 and (within[-1] + 1) % self._chunk == 0 for _, _, _, within in places)

    def store(self, places: list, after: object = None) -> int:
        """Pages to slots. Returns the bytes. `after`: an event of the device that must pass first."""
        return self._copy(places, True, after)

    def load(self, places: list, after: object = None, threads: int = 1) -> int:
        """Slots to pages. Returns the bytes. `after`: as for store(). `threads`: for copies on the host."""
        return self._copy(places, False, after, threads)

    def _copy(self, places: list, to_slots: bool, after: object, threads: int = 1) -> int:
        copied = 0
        for group, blocks, slots, within in places:
            copy = self._on_host if self._device.type == "cpu" else self._on_device
            copied += copy(self._groups[group], blocks, slots, within, to_slots, after, threads)
        return copied

    def load_checked(self, places: list, parts: np.ndarray, size: int, threads: int) -> np.ndarray | None:
        """load(), and the checksum of `size` bytes at each of these addresses, one for each slot, 0 for none;
        in one pass over the memory. None, and nothing is loaded, where pages do not allow that."""
        if self._device.type != "cpu" or self._chunk > 1 or len(places) != 1:
            return None
        group, blocks, slots, within = places[0]
        if len(blocks) != len(parts) or not self._groups[group]:
            return None
        # Slot by slot, not piece by piece.
        turned = [np.ascontiguousarray(each.reshape(-1, len(blocks)).T).ravel()
                  for each in self._addresses(self._groups[group], blocks, slots, within, False)]
        return np.array(_native._copy_checked(parts, size, *turned, threads), np.uint64)

    def _on_host(self, pieces: list[Piece], blocks: np.ndarray, slots: np.ndarray, within: np.ndarray,
                 to_slots: bool, after: object, threads: int) -> int:
        if not pieces:
            return 0
        page, place, size = self._addresses(pieces, blocks, slots, within, to_slots)
        if to_slots:
            _native._copy_pieces(place, page, size, threads)
        else:
            _native._copy_pieces(page, place, size, threads)
        return int(size.sum())

    # Of each piece: its place in a page, its place in a slot, its size.
    def _addresses(self, pieces: list[Piece], blocks: np.ndarray, slots: np.ndarray, within: np.ndarray,
                   to_slots: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        base = np.uint64(self._slots.ctypes.data)
        pages: list[np.ndarray] = []
        places: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        for piece in pieces:
            tensor = self._tensors[piece.tensor]
            chosen = slice(None)
            if to_slots and piece.writers > 1:
                chosen = (slots * self._chunk + within) % piece.writers == piece.writer
            ids, to, at = blocks[chosen], slots[chosen], within[chosen]
            pages.append(np.uint64(tensor.data_ptr())
                         + (ids * tensor.stride(0) + piece.in_page).astype(np.uint64))
            places.append(base + (to * self._slots.strides[0] + piece.in_slot
                                  + at * piece.block_stride).astype(np.uint64))
            sizes.append(np.full(ids.size, piece.size, np.uint64))
        return np.concatenate(pages), np.concatenate(places), np.concatenate(sizes)

    # Gathers whole slots on the device, so that few and long copies cross the link.
    def _on_device(self, pieces: list[Piece], blocks: np.ndarray, slots: np.ndarray, within: np.ndarray,
                   to_slots: bool, after: object, threads: int) -> int:
        if not pieces:
            return 0
        low = min(piece.in_slot for piece in pieces)
        high = max(piece.in_slot + piece.size for piece in pieces)
        batch = max(1, self.STAGING // (high - low))
        copied = 0
        # One gathers while the other's slots cross the link.
        streams = [torch.cuda.Stream(self._device) for _ in range(2)]
        for stream in streams:
            if after is not None:
                stream.wait_event(after)
        for turn, first in enumerate(range(0, len(blocks), batch)):
            part = slice(first, first + batch)
            with torch.cuda.stream(streams[turn % 2]):
                copied += self._device_batch(pieces, blocks[part], slots[part], within[part], low, high,
                                             to_slots)
        for stream in streams:
            stream.synchronize()
        return copied

    def _device_batch(self, pieces: list[Piece], blocks: np.ndarray, slots: np.ndarray, within: np.ndarray,
                      low: int, high: int, to_slots: bool) -> int:
        ids = torch.from_numpy(blocks).to(self._device)
        staging = torch.empty((len(blocks), high - low), dtype=torch.int8, device=self._device)
        stride = pieces[0].block_stride
        # Few operations per slot: each costs microseconds, and a slot crosses the link in twenty.
        staged = staging.unbind(0)
        rows = [self._rows[slot] for slot in slots.tolist()]
        if high - low != self._rows.shape[1]:
            rows = [row[low + at * stride:high + at * stride] for row, at in zip(rows, within.tolist())]
        apart = any(piece.block_stride != stride for piece in pieces) and self._chunk > 1
        whole = not apart and all(piece.writers == 1 for piece in pieces) and \
            sum(piece.size for piece in pieces) == high - low
        if not to_slots:
            for i in range(len(blocks)):
                if apart:
                    self._piece_rows(pieces, slots[i], int(within[i]), staged[i], low, False)
                else:
                    staged[i].copy_(rows[i], non_blocking=True)
        for piece in pieces:
            page = self._tensors[piece.tensor][:, piece.in_page:piece.in_page + piece.size]
            place = staging[:, piece.in_slot - low:piece.in_slot - low + piece.size]
            if to_slots:
                place.copy_(page[ids])
            else:
                page[ids] = place
        if to_slots:
            for i in range(len(blocks)):
                if whole:
                    rows[i].copy_(staged[i], non_blocking=True)
                else:
                    self._piece_rows(pieces, slots[i], int(within[i]), staged[i], low, True)
        return len(blocks) * sum(piece.size for piece in pieces)

    # Piece by piece, where other ranks write the bytes between.
    def _piece_rows(self, pieces: list[Piece], slot: int, within: int, staged: torch.Tensor, low: int,
                    to_slots: bool) -> None:
        for piece in pieces:
            if to_slots and piece.writers > 1 and \
                    (int(slot) * self._chunk + within) % piece.writers != piece.writer:
                continue
            begin = piece.in_slot + within * piece.block_stride
            row = self._rows[slot, begin:begin + piece.size]
            part = staged[piece.in_slot - low:piece.in_slot - low + piece.size]
            if to_slots:
                row.copy_(part, non_blocking=True)
            else:
                part.copy_(row, non_blocking=True)
