"""Prefix reuse for models of transformers: their KV in the tiers of a KvBlockManager.

    import ashlar.torch
    store = ashlar.torch.ModelStore(model, g1_blocks=1024, g2_blocks=8192)
    cache = store.cache_for(input_ids)                           # what the tiers have of this prompt
    output = model.generate(input_ids, past_key_values=cache)    # computes the rest
    cache.save(output)                                           # full blocks go into G1, and down

G1 is one tensor on the model's device. A cache is a copy of its blocks: attention in transformers wants the
keys of a sequence in one piece. So the blocks are free again when cache_for() returns, and a cache may live
as long as one likes.

A prefix is reused only where that is exact. The store first runs the model on a few tokens, whole and in two
parts: a model whose parts do not make the whole, or whose keys depend on later tokens, gets no hits. So do
models with layers that cannot be kept; see `ModelStore.declined`. For models with recurrent layers
cache_for() computes the prompt up to its last full block, because a state exists only where a pass ended.

This module needs torch and transformers 5; `import ashlar` does not load it. A store may be used by several
threads; a cache is for one.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import typing
import weakref

import numpy
import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ashlar import _native, _torch_blocks, _torch_states

__all__ = ["ModelStore", "SeededCache", "SeededLayer", "SeededSlidingLayer", "cache_for", "fingerprint"]

_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
# Rotary embeddings whose angles depend on the length of the whole sequence: a prefix has other keys in a
# longer one.
_LENGTH_DEPENDENT = ("dynamic", "longrope")
_SAMPLES = 64  # elements of each parameter that enter the fingerprint
_CHECKED_TOKENS = 24  # of the run that compares a whole with its parts

_stores: "weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[ModelStore]]" = weakref.WeakKeyDictionary()


class SeededLayer(DynamicLayer):
    """A layer of full attention that may begin with keys and values from blocks."""

    _layer_type = "ashlar_full_attention"

    def seed(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Begins with these, [batch, heads, tokens, dim]; update() appends."""
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values

    def reset(self) -> None:
        """Empties the layer."""
        self.keys = self.values = None
        self.is_initialized = False


class SeededSlidingLayer(DynamicSlidingWindowLayer):
    """A layer of sliding or chunked attention that keeps what left the window.

    The model sees what it would see in the library's layer. The rest is kept so that every block of the
    sequence can be saved, and a hit may end at any block.
    """

    _layer_type = "ashlar_sliding_attention"

    def seed(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Begins with these, [batch, heads, tokens, dim], from the first token on; update() appends."""
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values
        self.cumulative_length = keys.shape[-2]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object,
               **kwargs: object) -> typing.Tuple[torch.Tensor, torch.Tensor]:
        """Appends, and returns what the window of the new tokens shows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        self.keys = torch.cat([self.keys, key_states], dim=-2)
        self.values = torch.cat([self.values, value_states], dim=-2)
        visible = self.sliding_window - 1 + key_states.shape[-2]
        return self.keys[:, :, -visible:, :], self.values[:, :, -visible:, :]

    def crop(self, tokens_to_remove: int) -> None:
        """Removes that many tokens (given as a negative number) from the end."""
        if self.is_initialized:
            DynamicLayer.crop(self, tokens_to_remove)
            self.cumulative_length = self.keys.shape[-2]

    def reset(self) -> None:
        """Empties the layer."""
        self.keys = self.values = None
        self.is_initialized = False
        self.cumulative_length = 0


class SeededCache(DynamicCache):
    """The cache of one call of generate(), begun with what the tiers had. Made by ModelStore.cache_for().

    It is an ordinary DynamicCache besides: it can be cropped, reordered and used for several turns.
    """

    def __init__(self, store: "ModelStore", layers: list, prompt: torch.Tensor,
                 padding: typing.Optional[typing.List[int]], hasher: _native.SequenceHasher):
        """For ModelStore.cache_for()."""
        Cache.__init__(self, layers=layers)
        self._store, self._hasher = store, hasher
        self._prompt, self._padding = prompt, padding
        self._rows = list(range(prompt.shape[0]))  # the row of the prompt that each row of the cache has
        self._reordered = False
        self._states: typing.Optional[typing.Tuple[int, list]] = None  # blocks, and the state behind them
        self.cached_tokens = 0  # of each row, its padding included
        self.sources: typing.Dict[str, int] = {}  # blocks by the tier that had them, over all rows
        self.declined: typing.Optional[str] = None  # why nothing was looked up

    def save(self, output_ids: typing.Any = None) -> int:
        """Registers the full blocks of what was computed; returns how many were new to G1.

        output_ids: what generate() returned, prompt included, or None for the prompt alone. After beam
        search only the prompt is saved, because rows of the output are no rows of the cache. CapacityError
        never comes: where G1 has no room, the ends of sequences are left out.
        """
        return self._store._save(self, output_ids)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object,
               **kwargs: object) -> typing.Tuple[torch.Tensor, torch.Tensor]:
        """Appends to a layer. InvalidArgument where the prompt is fed again behind what was found of it."""
        before, length = self.layers[layer_idx].get_seq_length(), self._prompt.shape[1]
        if 0 < before < length < before + key_states.shape[-2]:
            raise _native.InvalidArgument(
                f"{key_states.shape[-2]} tokens were fed, but the prompt has only {length - before} left: "
                "generate() must be called without prefill_chunk_size, forward() with input_ids[:, "
                "cache.cached_tokens:]")
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def activate_past_recording(self) -> None:
        """Called by assisted decoding, which feeds the whole prompt whatever a cache has: begins anew."""
        if 0 < self.get_seq_length() < self._prompt.shape[1]:
            for layer in self.layers:
                layer.reset()
            self.cached_tokens, self.sources = 0, {}
        super().activate_past_recording()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorders the rows, as beam search does."""
        self._reordered = True
        self._rows = [self._rows[row] for row in beam_idx.tolist()]
        super().reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row."""
        self._reordered = True
        self._rows = [row for row in self._rows for _ in range(repeats)]
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the rows of these numbers."""
        self._reordered = True
        self._rows = torch.tensor(self._rows)[indices.cpu()].tolist()
        super().batch_select_indices(indices)


def fingerprint(model: torch.nn.Module, name: typing.Optional[str] = None) -> str:
    """What names the KV of a model: its name and revision, its configuration, and a sample of its weights.

    Stores whose fingerprints differ share no blocks, in memory, in files and on volumes. The sample has up to
    64 elements of every parameter and buffer, so that other weights under one name are another model.
    """
    config = model.config
    settings = {key: value for key, value in config.to_dict().items()
                if key not in ("_name_or_path", "transformers_version", "dtype", "torch_dtype")}
    seen = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    with torch.no_grad():
        for key, value in sorted(model.state_dict().items()):
            seen.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
            if not isinstance(value, torch.Tensor) or value.is_meta or value.numel() == 0:
                continue
            flat = value.detach().reshape(-1) if value.is_contiguous() else value.detach().flatten()
            step = max(1, flat.numel() // _SAMPLES)
            sample = flat[::step][:_SAMPLES].contiguous().cpu()
            seen.update(sample.view(torch.uint8).numpy().tobytes())
    name = name or getattr(config, "_name_or_path", "") or config.model_type
    revision = getattr(config, "_commit_hash", None) or "-"
    return f"{name}@{revision}#{seen.hexdigest()[:32]}"


def cache_for(model: torch.nn.Module, input_ids: typing.Any, **options: typing.Any) -> SeededCache:
    """ModelStore.cache_for() of the store that was made last for this model. NotFound without one."""
    kept = _stores.get(model)
    store = kept() if kept is not None else None
    if store is None:
        raise _native.NotFound("this model has no store: keep the one that ModelStore(model, ...) returns")
    return store.cache_for(input_ids, **options)


class ModelStore:
    """The KV blocks of one model, in G1 on its device and in the tiers below.

    model: a causal language model of transformers. g1_blocks: how many blocks of `block_size` tokens G1 has;
    one call can reuse and save as many. g1_memory: a tensor that becomes G1, of the shape `g1_shape` gives,
    instead of one made here. g1_device: where G1 is; by default the model's device. name: of the weights, by
    default the configuration's. prefix_key: 16 secret bytes, for stores whose clients may craft collisions;
    by default made from the fingerprint. state_blocks: how many states of recurrent layers G1 keeps, for
    models that have such; G2 and G3 keep as many in proportion to their blocks. tiers: more
    arguments of KvBlockManager, such as g2_blocks, g3_blocks, g3_path, g4_blocks, offload, eviction.

    `kv` is that manager: kv.register_volume() attaches volumes, kv.drain() waits for offloads, kv.status
    counts. close(), or leaving `with`, ends it.
    """

    def __init__(self, model: torch.nn.Module, *, g1_blocks: int = 0, block_size: int = 16,
                 g1_memory: typing.Optional[torch.Tensor] = None,
                 g1_device: typing.Union[str, torch.device, None] = None,
                 name: typing.Optional[str] = None, prefix_key: typing.Optional[bytes] = None,
                 state_blocks: int = 16, **tiers: typing.Any):
        """The arguments are those of the class."""
        if getattr(model.config, "is_encoder_decoder", False):
            raise _native.Unsupported("models with an encoder keep two caches; only decoders have a store")
        self._model = weakref.ref(model)
        self._config = model.config
        self._block_size = block_size
        self._weights = _weights_of(model)
        self.fingerprint = fingerprint(model, name)
        self._states: typing.Optional[_torch_states.StateStore] = None
        self.declined, every = _examine(model)
        probe = _attention(every)
        shapes = [(tuple(layer.keys.shape[1::2]), tuple(layer.values.shape[1::2])) for layer in probe]
        dtypes = {layer.keys.dtype for layer in probe} | {layer.values.dtype for layer in probe}
        if len(dtypes) > 1 or not dtypes <= set(_DTYPES):
            self.declined = self.declined or f"its keys and values have the types {sorted(map(str, dtypes))}"
        if self.declined is not None:
            # A store that keeps nothing still hands out caches, so that a program need not tell models apart.
            self.kv: typing.Optional[_native.KvBlockManager] = None
            self.memory: typing.Optional[torch.Tensor] = None
            _stores[model] = weakref.ref(self)
            return
        dtype = dtypes.pop()
        self._shape = _torch_blocks.block_shape(shapes, block_size)
        self._devices = [layer.keys.device for layer in probe]
        if g1_device is None:
            g1_device = self._devices[0] if self._devices[0].type == "cuda" else "cpu"
        if g1_memory is None:
            if g1_blocks < 1:
                raise _native.InvalidArgument("g1_blocks is not given: how many blocks G1 shall have")
            g1_memory = torch.zeros((g1_blocks, *self._shape), dtype=dtype, device=g1_device)
        elif tuple(g1_memory.shape[1:]) != self._shape or g1_memory.dtype != dtype:
            raise _native.InvalidArgument(
                f"g1_memory is {tuple(g1_memory.shape)} of {g1_memory.dtype}; this model needs "
                f"(blocks, {', '.join(map(str, self._shape))}) of {dtype}")
        self.memory = g1_memory
        self._places = _torch_blocks.places_of(g1_memory, shapes)
        key = hashlib.sha256(self.fingerprint.encode()).digest()[:16] if prefix_key is None else prefix_key
        layers, outer, _, heads, dim = self._shape
        fields = _torch_states.fields_of(every)
        if fields:
            self._states = _torch_states.StateStore(fields, len(g1_memory), state_blocks, block_size,
                                                    self.fingerprint, key, tiers)
        self.kv = _native.KvBlockManager(
            layers=layers, outer=outer, heads=heads, head_dim=dim, block_size=block_size,
            dtype=_DTYPES[dtype], model=self.fingerprint, g1_memory=g1_memory, prefix_key=key, **tiers)
        _stores[model] = weakref.ref(self)

    @staticmethod
    def g1_shape(model: torch.nn.Module, block_size: int = 16) -> typing.Tuple[int, ...]:
        """The shape of one block of this model: (layers, K and V, tokens, heads, dim).

        Where layers differ it is (1, 1, tokens, 1, elements), where K and V differ (layers, 1, tokens, heads,
        elements). g1_memory has the number of blocks before it. Unsupported for a model that is declined.
        """
        declined, probe = _examine(model)
        if declined is not None:
            raise _native.Unsupported(f"the KV of this model is not kept: {declined}")
        shapes = [(layer.keys.shape[1::2], layer.values.shape[1::2]) for layer in _attention(probe)]
        return _torch_blocks.block_shape(shapes, block_size)

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._block_size

    def close(self) -> None:
        """Waits for what is queued to go down, and ends the manager."""
        if self.kv is not None:
            self.kv.close()
        if self._states is not None:
            self._states.kv.close()

    def __enter__(self) -> "ModelStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cache_for(self, input_ids: typing.Any, *, attention_mask: typing.Optional[torch.Tensor] = None,
                  salt: typing.Union[str, _native.Salt, None] = None,
                  timeout: typing.Optional[float] = None,
                  compute_tokens_per_second: typing.Optional[float] = None) -> SeededCache:
        """A cache for generate() or forward() that has what the tiers have of this prompt.

        input_ids: [batch, tokens], or one row; attention_mask as for generate(), with padding on the left.
        Onboards what lies below G1. At least one token is left to compute. All rows get one length, since a
        cache has one: that of the row with the shortest hit, padding counted. Give generate() the whole
        prompt; prefill_chunk_size and cache_implementation must not be set.

        salt: separates tenants: a name, or a Salt. Active LoRA adapters of the model are part of it by
        themselves. timeout, compute_tokens_per_second: as for KvBlockManager.onboard(); blocks that do not
        come up in time are computed.
        """
        prompt = _token_rows(input_ids)
        model = self._model()
        reason = self.declined
        if reason is None and model is not None and _weights_of(model) != self._weights:
            reason = "the weights changed since the store was made: make another one"
        padding, reason = self._padding_of(model, prompt, attention_mask, reason)
        hasher = _native.SequenceHasher() if self.kv is None else self.kv.hasher(self._salt_of(model, salt))
        cache = SeededCache(self, _layers_of(self._config), prompt, padding, hasher)
        cache.declined = reason
        if reason is None:
            self._seed(cache, timeout, compute_tokens_per_second)
            if self._states is not None and model is not None:
                self._advance(cache, model)
        return cache

    def _advance(self, cache: SeededCache, model: torch.nn.Module) -> None:
        """Computes up to the last block of the prompt, where the state is kept."""
        start, size = cache.get_seq_length(), self._block_size
        end = (cache._prompt.shape[1] - 1) // size * size
        if end <= start:
            return
        taken = inspect.signature(model.forward).parameters
        last = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        with torch.no_grad():
            model(input_ids=cache._prompt[:, start:end].to(model.device), past_key_values=cache,
                  use_cache=True, **last)
        cache._states = (end // size, [_torch_states.pack(self._states.fields, cache.layers, row)
                                       for row in range(cache._prompt.shape[0])])

    def _padding_of(self, model: typing.Optional[torch.nn.Module], prompt: torch.Tensor,
                    mask: typing.Optional[torch.Tensor], reason: typing.Optional[str]
                    ) -> typing.Tuple[typing.Optional[typing.List[int]], typing.Optional[str]]:
        """Padding on the left of each row, or why rows cannot be looked up."""
        if mask is None:
            # generate() takes padding tokens for padding unless it is told otherwise.
            settings = getattr(model, "generation_config", None)
            pad = getattr(settings, "pad_token_id", None)
            ends = getattr(settings, "eos_token_id", None)
            ends = ends if isinstance(ends, (list, tuple)) else [ends]
            if pad is None or pad in ends:
                return [0] * prompt.shape[0], reason
            mask = prompt != pad
        mask = torch.as_tensor(mask).cpu()
        if tuple(mask.shape) != tuple(prompt.shape):
            raise _native.InvalidArgument(
                f"attention_mask is {tuple(mask.shape)}, but input_ids are {tuple(prompt.shape)}")
        mask = mask.to(torch.int64).clamp(0, 1)
        if bool((mask.diff(dim=1) < 0).any()) or bool((mask.sum(dim=1) == 0).any()):
            return None, reason or "its padding is not on the left"
        padding = (mask.shape[1] - mask.sum(dim=1)).tolist()
        if self._states is not None and any(padding):
            return None, reason or "its padding would be part of the states of recurrent layers"
        return padding, reason

    def _salt_of(self, model: typing.Optional[torch.nn.Module],
                 salt: typing.Union[str, _native.Salt, None]) -> _native.Salt:
        given = _native.Salt(tenant=salt or "") if salt is None or isinstance(salt, str) else salt
        if given.lora or not getattr(model, "_hf_peft_config_loaded", False):
            return given
        return _native.Salt(lora=",".join(model.active_adapters()), tenant=given.tenant)

    def _seed(self, cache: SeededCache, timeout: typing.Optional[float],
              speed: typing.Optional[float]) -> None:
        """Onboards the longest prefix that all rows have, and copies it into the cache."""
        size, padding = self._block_size, cache._padding
        tokens = [row[skipped:].numpy() for row, skipped in zip(cache._prompt, padding)]
        common = cache._prompt.shape[1] - 1
        hashes = [cache._hasher.hash_blocks(row, size) for row in tokens]
        found = []
        for skipped, row in zip(padding, hashes):
            found.append(self.kv.find(row.sequence, timeout=timeout))
            common = min(common, skipped + size * sum(count for _, _, count, _ in found[-1]))
        states = []
        if self._states is not None:
            depth = self._states.deepest([row.sequence for row in hashes], common // size)
            states = [self._states.load(row, text, cache._hasher, depth, timeout) if depth > 0 else None
                      for row, text in zip(hashes, tokens)]
            if any(state is None for state in states):
                return
            common = depth * size
        if common <= min(padding):
            return
        with contextlib.ExitStack() as held:
            tables = []
            for skipped, row in zip(padding, tokens):
                wanted = _torch_blocks.blocks_for(common - skipped, size)
                names = cache._hasher.hash_blocks(row[:wanted * size], size)
                tables.append(held.enter_context(
                    self.kv.onboard(names, timeout=timeout, compute_tokens_per_second=speed)))
                if states and len(tables[-1]) < wanted:
                    return  # a state is exact at its own place alone
                common = min(common, skipped + len(tables[-1]) * size)
            if common <= min(padding):
                return
            for skipped, runs in zip(padding, found):
                wanted = _torch_blocks.blocks_for(common - skipped, size)
                for tier, first, count, _ in runs:
                    used = max(0, min(first + count, wanted) - first)
                    cache.sources[tier] = cache.sources.get(tier, 0) + used
            ids = [torch.from_numpy(numpy.asarray(table.block_ids).astype(numpy.int64)).to(self.memory.device)
                   for table in tables]
            for layer, place, device in zip(_attention(cache.layers), self._places, self._devices):
                layer.seed(_torch_blocks.gather(place.keys, ids, padding, common, device),
                           _torch_blocks.gather(place.values, ids, padding, common, device))
            _torch_blocks.wait_for(self.memory)  # the blocks may be overwritten once they are given back
        if states:
            _torch_states.unpack(self._states.fields, cache.layers, states)
        cache.cached_tokens = common

    def _save(self, cache: SeededCache, output_ids: typing.Any) -> int:
        model = self._model()
        if cache.declined is not None or (model is not None and _weights_of(model) != self._weights):
            return 0
        tokens, rows = cache._prompt, cache._rows
        if output_ids is not None and not cache._reordered:
            tokens = _token_rows(getattr(output_ids, "sequences", output_ids))
            length = cache._prompt.shape[1]
            if tokens.shape[0] != len(rows) or not torch.equal(tokens[:, :length], cache._prompt):
                raise _native.InvalidArgument(
                    f"output_ids {tuple(tokens.shape)} do not begin with the prompt of this cache, "
                    f"{tuple(cache._prompt.shape)}: give what generate() returned for it")
            if tokens.shape[1] < cache.get_seq_length():
                raise _native.InvalidArgument(
                    f"the cache has {cache.get_seq_length()} tokens, output_ids only {tokens.shape[1]}: "
                    "it was filled with something else")
            rows = list(range(len(rows)))
        end = min(cache.get_seq_length(), tokens.shape[1])
        saved, done = 0, set()
        for row, origin in enumerate(rows):
            if cache._reordered and origin in done:
                continue  # beams of one prompt
            done.add(origin)
            skipped = cache._padding[origin]
            sequence = _native.TokenSequence(tokens[origin, skipped:max(skipped, end)].numpy(),
                                             self._block_size, cache._hasher)
            saved += self._save_row(cache, row, skipped, sequence)
        if cache._states is not None:
            depth, states = cache._states
            for row, state in zip(cache._prompt, states):
                sequence = _native.TokenSequence(row[:depth * self._block_size].numpy(), self._block_size,
                                                 cache._hasher)
                self._states.save(sequence, depth, state)
        return saved

    def _save_row(self, cache: SeededCache, row: int, skipped: int, sequence: _native.TokenSequence) -> int:
        with self.kv.g1.match_sequence(sequence) as held:
            first = len(held)
            count = min(sequence.block_count - first, self.kv.g1.available)
            if count <= 0:
                return 0
            try:
                blocks = self.kv.g1.allocate(count)
            except _native.CapacityError:  # another thread took them
                return 0
            with blocks:
                ids = torch.from_numpy(numpy.asarray(blocks.block_ids).astype(numpy.int64))
                ids = ids.to(self.memory.device)
                start = skipped + first * self._block_size
                end = start + count * self._block_size
                with torch.no_grad():
                    for layer, place in zip(_attention(cache.layers), self._places):
                        _torch_blocks.scatter(place.keys, ids, layer.keys[row, :, start:end])
                        _torch_blocks.scatter(place.values, ids, layer.values[row, :, start:end])
                _torch_blocks.wait_for(self.memory)  # a block is complete when its bytes are there
                self.kv.g1.register(blocks.complete(sequence, first)).release()
        return count


def _token_rows(ids: typing.Any) -> torch.Tensor:
    """Token ids on the host, [rows, tokens]."""
    ids = torch.as_tensor(ids).detach()
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or ids.is_floating_point():
        raise _native.InvalidArgument(
            f"token ids have the shape (batch, tokens), these {tuple(ids.shape)} of {ids.dtype}")
    return ids.cpu().to(torch.int64)


def _layers_of(config: typing.Any) -> list:
    """The layers of a cache for this configuration; those that can be seeded are ours."""
    layers = []
    for layer in DynamicCache(config=config).layers:
        if type(layer) is DynamicLayer:
            layers.append(SeededLayer())
        elif type(layer) is DynamicSlidingWindowLayer:
            layers.append(SeededSlidingLayer(sliding_window=layer.sliding_window))
        else:
            layers.append(layer)
    return layers


def _attention(layers: list) -> list:
    """The layers whose keys and values are in blocks."""
    return [layer for layer in layers if isinstance(layer, (SeededLayer, SeededSlidingLayer))]


def _examine(model: torch.nn.Module) -> typing.Tuple[typing.Optional[str], list]:
    """Why the KV of this model cannot be reused, or None, and layers that show its shapes.

    Runs a few tokens in one piece and in two. The second piece must continue the first, and the keys of the
    first must not depend on the second.
    """
    config = model.config.get_text_config(decoder=True)
    ropes = _rope_types(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None))
    for rope in sorted(ropes.intersection(_LENGTH_DEPENDENT)):
        return f"its rotary embedding ({rope}) depends on the length of the sequence", []
    layers = _layers_of(model.config)
    other = sorted({type(layer).__name__ for layer in layers
                    if not isinstance(layer, (SeededLayer, SeededSlidingLayer))
                    and not _torch_states.is_recurrent(layer)})
    if other or not _attention(layers):
        return f"it has layers that are kept in no blocks: {', '.join(other) or 'no attention'}", []
    ids = (torch.arange(_CHECKED_TOKENS, device=model.device) * 7 + 11)[None] % max(2, config.vocab_size)
    cut = _CHECKED_TOKENS * 2 // 3
    whole, parts, blank = (_bare_cache(_layers_of(model.config)) for _ in range(3))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            full = model(input_ids=ids, past_key_values=whole, use_cache=True)[0]
            model(input_ids=ids[:, :cut], past_key_values=parts, use_cache=True)
            rest = model(input_ids=ids[:, cut:], past_key_values=parts, use_cache=True)[0]
            fields = _torch_states.fields_of(whole.layers)
            if fields:
                model(input_ids=ids[:, :cut], past_key_values=blank, use_cache=True)
                for field in fields:
                    _torch_states.state_of(field, blank.layers).zero_()
                model(input_ids=ids[:, cut:], past_key_values=blank, use_cache=True)
    except Exception as error:  # noqa: BLE001  whatever a model does with tokens alone
        return f"it does not run on tokens alone: {type(error).__name__}: {error}", []
    finally:
        model.train(was_training)
    if any(not layer.is_initialized or layer.get_seq_length() != _CHECKED_TOKENS
           for layer in _attention(whole.layers + parts.layers)):
        return "it does not fill its cache", []
    exact = _attention(whole.layers)[0].keys.dtype in (torch.float32, torch.float64)
    limit = 1e-3 if exact else 0.1
    pairs = [(full[:, cut:], rest)]
    for one, two in zip(_attention(whole.layers), _attention(parts.layers)):
        for name in ("keys", "values"):
            left, right = (getattr(layer, name).transpose(1, 2).flatten(2) for layer in (one, two))
            pairs += [(left[:, :cut], right[:, :cut]), (left[:, cut:], right[:, cut:])]
    worst = max(_difference(left, right) for left, right in pairs)
    for field in fields:
        # A layer that did not take its state up differs as much as one that lost it, however little that is.
        right, found, lost = (_torch_states.state_of(field, cache.layers).reshape(1, 1, -1)
                              for cache in (whole, parts, blank))
        worst = max(worst, _difference(right, found))
        if field.kind == "recurrent_states" and _difference(right, found) > _difference(right, lost) / 4:
            return f"layer {field.layer} does not continue from its state", []
    if not worst <= limit:
        return f"its prefixes cannot be continued: parts differ from the whole by {worst:.2g}", []
    return None, whole.layers


def _bare_cache(layers: list) -> DynamicCache:
    cache = DynamicCache()
    Cache.__init__(cache, layers=layers)
    return cache


def _difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """The relative difference of tokens, [batch, tokens, values]: the median, as routing may flip for one."""
    left, right = left.to("cpu", torch.float64), right.to("cpu", torch.float64)
    each = (left - right).norm(dim=-1) / left.norm(dim=-1).clamp_min(1e-30)
    return float(each.median()) if bool(torch.isfinite(each).all()) else float("inf")


def _rope_types(parameters: typing.Any) -> typing.Set[str]:
    """All rope types in a configuration, which may have one set of parameters for each type of layer."""
    if not isinstance(parameters, dict):
        return set()
    found = {str(parameters[key]) for key in ("rope_type", "type") if key in parameters}
    return found.union(*(_rope_types(value) for value in parameters.values()))


def _weights_of(model: torch.nn.Module) -> int:
    """Changes when a parameter is written in place or replaced."""
    return hash(tuple((value.data_ptr(), 0 if value.is_inference() else value._version)
                      for value in model.parameters()))
