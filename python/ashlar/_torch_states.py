"""The states of recurrent layers at the ends of blocks. A part of ashlar.torch.

Linear attention, convolutions and state spaces keep one state for all tokens so far. It exists only where a
forward pass ended, so the store ends one at the last block of a prompt and keeps the state that the model
then has: one block of bytes, under the name of the last block of tokens.
"""

from __future__ import annotations

import typing

import numpy
import torch
from transformers.cache_utils import LinearAttentionLayer

from ashlar import _native, _torch_blocks

# What states take over from the tiers of the store.
_SHARED = ("eviction", "offload", "survive_power_loss")


class Field(typing.NamedTuple):
    """One tensor of a recurrent layer, without the axis of rows."""

    layer: int
    kind: str  # conv_states or recurrent_states
    index: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    size: int  # in bytes


def is_recurrent(layer: object) -> bool:
    """Whether a layer has nothing but a state. Layers without a cache of their own are such too: empty."""
    return type(layer) is LinearAttentionLayer


def fields_of(layers: typing.Sequence) -> typing.List[Field]:
    """The tensors of all recurrent layers, after a forward pass."""
    fields = []
    for number, layer in enumerate(layers):
        if not is_recurrent(layer):
            continue
        for index in range(layer.number_of_states):
            for kind in ("conv_states", "recurrent_states"):
                state = getattr(layer, kind)[index]
                if state is not None:
                    fields.append(Field(number, kind, index, state.shape[1:], state.dtype, state.device,
                                        state[0].numel() * state.element_size()))
    return fields


def state_of(field: Field, layers: typing.Sequence) -> torch.Tensor:
    """The tensor of a field, with all rows."""
    return getattr(layers[field.layer], field.kind)[field.index]


def pack(fields: typing.Sequence[Field], layers: typing.Sequence, row: int) -> torch.Tensor:
    """A copy of the state of one row, as bytes."""
    device = fields[0].device
    return torch.cat([state_of(field, layers)[row].contiguous().view(-1).view(torch.uint8).to(device)
                      for field in fields])


def unpack(fields: typing.Sequence[Field], layers: typing.Sequence,
           rows: typing.Sequence[torch.Tensor]) -> None:
    """Gives empty layers the states of these rows."""
    start = 0
    for field in fields:
        states = torch.stack([row[start:start + field.size].clone().view(field.dtype).view(field.shape)
                              for row in rows]).to(field.device)
        start += field.size
        layer = layers[field.layer]
        layer.lazy_initialization(**{field.kind: states}, state_idx=field.index)
        state_of(field, layers).copy_(states)
        layer.has_previous_state[field.index] = True


class StateStore:
    """States by the name of the block at whose end they were. Used as the ModelStore that owns it."""

    def __init__(self, fields: typing.Sequence[Field], g1_blocks: int, count: int, block_size: int,
                 model: str, key: bytes, tiers: typing.Mapping[str, typing.Any]):
        self.fields = fields
        self._bytes = sum(field.size for field in fields)
        self._block_size = block_size
        width = -(-self._bytes // block_size)
        device = fields[0].device if fields[0].device.type == "cuda" else "cpu"
        self.memory = torch.zeros((count, 1, 1, block_size, 1, width), dtype=torch.uint8, device=device)
        options = {name: tiers[name] for name in _SHARED if name in tiers}
        for name in ("g2_blocks", "g3_blocks"):
            if tiers.get(name):
                options[name] = max(1, count * tiers[name] // g1_blocks)
        if tiers.get("g3_path") is not None:
            paths = tiers["g3_path"]
            options["g3_path"] = ([f"{path}.states" for path in paths] if isinstance(paths, (list, tuple))
                                  else f"{paths}.states")
        self.kv = _native.KvBlockManager(
            layers=1, outer=1, heads=1, head_dim=width, block_size=block_size, dtype="u8",
            model=f"{model} states", g1_memory=self.memory, prefix_key=key, **options)

    def deepest(self, names: typing.Sequence[_native.SequenceHashes], limit: int) -> int:
        """The largest number of blocks, up to the limit, behind which every row has a state; 0: none."""
        if limit == 0:
            return 0
        known = numpy.stack([numpy.asarray(self.kv.presence(row[:limit])) != 0 for row in names]).all(axis=0)
        return int(known.nonzero()[0].max()) + 1 if known.any() else 0

    def load(self, hashes: _native.BlockHashes, tokens: numpy.ndarray, hasher: _native.SequenceHasher,
             depth: int, timeout: typing.Optional[float]) -> typing.Optional[torch.Tensor]:
        """The state behind that many blocks; None where it is gone."""
        last = tokens[(depth - 1) * self._block_size:depth * self._block_size]
        if depth > 1:
            one = hasher.hash_blocks(last, self._block_size, parent=hashes.sequence[depth - 2],
                                     parent_prefix=hashes.prefix_at(depth - 2))
        else:
            one = hasher.hash_blocks(last, self._block_size)
        with self.kv.onboard(one, timeout=timeout) as table:
            if len(table) == 0:
                return None
            packed = self.memory[int(table.block_ids[0])].flatten()[:self._bytes].clone()
            _torch_blocks.wait_for(self.memory)
        return packed

    def save(self, sequence: _native.TokenSequence, depth: int, packed: torch.Tensor) -> None:
        """Registers the state behind that many blocks of a sequence. Does nothing where G1 has no room."""
        if len(self.kv.g1.match(sequence.sequence_hashes[depth - 1:depth])) == 1:
            return
        try:
            blocks = self.kv.g1.allocate(1)
        except _native.CapacityError:
            return
        with blocks:
            block = int(blocks.block_ids[0])
            self.memory[block].flatten()[:self._bytes].copy_(packed)
            _torch_blocks.wait_for(self.memory)
            self.kv.g1.register(blocks.complete(sequence, depth - 1)).release()
