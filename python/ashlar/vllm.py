"""vLLM on Ashlar's tiers: an OffloadingSpec for its OffloadingConnector, loaded by configuration alone.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"spec_name": "AshlarOffloadingSpec", "spec_module_path": "ashlar.vllm",
                                    "g2_bytes": 8589934592, "g3_path": "/data/kv", "g3_bytes": 107374182400}}'

vLLM's scheduler process has the manager: G2 in memory that it shares with the workers, G3 in files, G4 on
volumes. The workers copy between their KV cache and G2, and can do nothing else. A block is promised to a
request only when it is in G2, verified and pinned (HostStore), so a load cannot fail. docs/guide/vllm.md has
the settings, and what is tested.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    LoadStoreSpec,
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGaugeMetadata,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ashlar import AshlarError, HostStore, KvBlockManager
from ashlar._host_region import HostRegion
from ashlar._page_copies import PageCopier, Piece
from ashlar._vllm_events import EventDesk
from ashlar._vllm_fingerprint import bytes_of, engine_settings, fingerprint_of, weights_of
from ashlar._vllm_hints import HintDesk, HintOutcome
from ashlar._vllm_worker import AshlarOffloadingWorker, SlotSpec

_log = logging.getLogger("vllm.ashlar")

_ANSWERS = {
    "miss": LookupResult.MISS,
    "hit": LookupResult.HIT,
    "pending": LookupResult.HIT_PENDING,
    "unknown": LookupResult.RETRY,
}
_SOURCES = {
    "g2": CacheHitSource.HOST,
    "g3": CacheHitSource.DISK,
    "g4": CacheHitSource.EXTERNAL_UNSPECIFIED,
    "remote": CacheHitSource.P2P,
}

# What the specification takes beyond what vLLM's connector reads itself.
_SETTINGS = {
    "g2_bytes", "g3_path", "g3_bytes", "volumes", "volume_blocks", "model", "eviction", "survive_power_loss",
    "fetch_limit", "compute_tokens_per_second", "shutdown_limit", "max_pinned_share", "remote",
    "sync_load_bytes",
}
_OF_VLLM = {
    "spec_name", "spec_module_path", "block_size", "blocks_per_chunk", "offload_prompt_only",
    "self_describing_kv_events", "canonical_layout",
}


class _Request:
    """What the manager keeps with a request of vLLM's."""

    def __init__(self, number: int):
        self.number = number


class AshlarOffloadingManager(OffloadingManager):
    """Runs in the scheduler. Every call returns at once: slower tiers work in threads of the library."""

    def __init__(self, region: HostRegion, kv: KvBlockManager, store: HostStore, *, events: bool,
                 shutdown_limit: float, block_bytes: int, writers: int | None = None):
        """For AshlarOffloadingSpec. block_bytes: of a block in one rank. writers: how many ranks take part in
        a store; None: all."""
        self.block_bytes = block_bytes
        self._region = region
        self._kv = kv
        self._store = store
        self._events = EventDesk(kv, store) if events else None
        self._shutdown_limit = shutdown_limit
        self._hints = HintDesk(kv, store)
        self._storing: dict[OffloadKey, int] = {}  # the job of each key
        self._loading: dict[str, list[tuple[int, frozenset[OffloadKey]]]] = {}  # by request
        self._spoiled: set[int] = set()  # jobs that store what must not be found
        self._writers = writers  # ranks that take part in a store; None: all
        self._abandoned: list[tuple[int, bool]] = []  # jobs, and whether they store
        self._numbers: dict[str, int] = {}  # of requests that were not scheduled yet
        self._said: dict[str, list[HintOutcome]] = {}  # of the hints of requests
        self._reported: dict[str, int] = {}
        self._warned = False

    # ---- requests

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Numbers the request, and begins what its hints ask for."""
        if req_context.get_state(_Request) is None:
            number = self._store.begin_request()
            req_context.set_state(_Request(number))
            self._numbers[req_context.req_id] = number
            if req_context.kv_hints is not None:
                self._said[req_context.req_id] = self._hints.take(req_context.kv_hints)
        return RequestOffloadingContext()

    def _number(self, req_context: ReqContext) -> int:
        request = req_context.get_state(_Request)
        if request is None:
            self.on_new_request(req_context)
            request = req_context.get_state(_Request)
        return request.number

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Ends its pins; jobs under way go on."""
        request = req_context.get_state(_Request)
        self._numbers.pop(req_context.req_id, None)
        self._said.pop(req_context.req_id, None)
        if request is not None:
            self._store.end_request(request.number)

    def hint_outcomes(self, request: str) -> list[dict[str, str]]:
        """What became of the hints of a request that has not finished, one for each action."""
        self._hints.step()
        return [each._asdict() for each in self._said.get(request, ())]

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether a block can be loaded; HIT_PENDING and RETRY: a slower tier brings it up, or is asked."""
        allowed = req_context.load_tier_filter
        if not (allowed.allows(Medium.CPU, Locality.LOCAL) or allowed.allows(Medium.STORAGE, None)):
            return LookupResult.MISS
        answer = self._store.lookup(self._number(req_context), key)
        if self._events is not None and answer == "hit":
            self._events.know(key)
        return _ANSWERS[answer]

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """The tier that had the block when the request first asked for it."""
        tier = self._store.source(self._number(req_context), key)
        return _SOURCES.get(tier or "", CacheHitSource.EXTERNAL_UNSPECIFIED)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Counts as a use of those that are in G2."""
        self._store.touch(list(keys))

    # ---- jobs

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """The slots of G2 to read, which stay until complete_load()."""
        wanted = list(keys)
        job, slots, writers = self._store.begin_load(self._number(req_context), wanted)
        if slots:
            self._loading.setdefault(req_context.req_id, []).append((job, frozenset(wanted)))
        return SlotSpec(job, slots, writers)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Gives the slots back. Blocks of a load that found damage are dropped."""
        jobs = self._loading.get(req_context.req_id, [])
        ended = frozenset(keys)
        for entry in jobs:
            if entry[1] == ended:
                jobs.remove(entry)
                self._store.end_job(entry[0], not self._region.has_failed(entry[0]))
                break
        if not jobs:
            self._loading.pop(req_context.req_id, None)

    def prepare_store(self, keys: Collection[OffloadKey],
                      req_context: ReqContext) -> PrepareStoreOutput | None:
        """The slots of G2 to write, for the keys that are not there already, as far as there is room."""
        offered = list(keys)
        if not self._region.complete:
            if not self._warned:
                self._warned = True
                _log.error("ashlar: ranks %s do not share the memory of the scheduler; workers on other "
                           "machines cannot use G2, and nothing is stored", self._region.missing())
            return PrepareStoreOutput([], SlotSpec(0, []), [])
        try:
            job, chosen, slots = self._store.begin_store(offered)
        except AshlarError as error:
            _log.warning("ashlar: nothing is stored: %s", error)
            return PrepareStoreOutput([], SlotSpec(0, []), [])
        stored = [offered[i] for i in chosen]
        for key in stored:
            self._storing[key] = job
            if self._events is not None:
                self._events.know(key)
        return PrepareStoreOutput(keys_to_store=stored, store_spec=SlotSpec(job, slots), evicted_keys=[])

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext,
                       success: bool = True) -> None:
        """The blocks are found from now on, if they were written."""
        jobs = {self._storing.pop(key) for key in keys if key in self._storing}
        for job in jobs:
            self._store.end_job(job, success and job not in self._spoiled and
                                not self._region.has_failed(job))
        self._spoiled -= jobs

    def spoil(self, keys: Iterable[OffloadKey]) -> None:
        """What is being stored under these keys was computed behind damage: it is not found afterwards."""
        self._spoiled |= {self._storing[key] for key in keys if key in self._storing}

    # ---- steps

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Ends the pins of requests that were scheduled, and brings up what lookup() was asked for."""
        # What they have not loaded by now they compute.
        for name in context.new_req_ids:
            number = self._numbers.pop(name, None)
            if number is not None:
                self._store.drop_pins(number)
        self._store.fetch_asked()
        self._hints.step()
        self._reap()

    def has_pending_work(self) -> bool:
        """Whether jobs that a reset left behind still run."""
        return bool(self._abandoned)  # a request that waits for a fetch keeps the engine stepping itself

    # Jobs that a reset left behind: vLLM does not report their end, the workers do.
    def _reap(self) -> None:
        if not self._abandoned:
            return
        left = []
        for job, is_store in self._abandoned:
            if self._region.has_ended(job, self._writers if is_store else None):
                self._store.end_job(job, False)
            else:
                left.append((job, is_store))
        self._abandoned = left

    def reset_cache(self) -> None:
        """Forgets every block, in all tiers: after new weights no block of the old ones is found."""
        self._abandoned += [(job, True) for job in sorted(set(self._storing.values()))]
        self._abandoned += [(job, False) for jobs in self._loading.values() for job, _ in jobs]
        self._storing.clear()
        self._spoiled.clear()
        self._loading.clear()
        self._hints.forget()
        self._store.forget_all()
        if self._events is not None:
            self._events.forget()
        self._reap()

    # ---- told

    def take_events(self) -> Iterable[OffloadingEvent]:
        """The blocks that came and went since the last call; nothing where events are off."""
        return self._events.take(self._storing) if self._events is not None else ()

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What has happened since the last call, as counters of vLLM; None: nothing."""
        stats = OffloadingConnectorStats()
        now = {**self._store.counters, **self._hints.counters}
        for name, value in now.items():
            new = value - self._reported.get(name, 0)
            if new > 0:
                stats.increase_counter(f"vllm:ashlar_{name}", new)
        if now == self._reported:
            return None
        self._reported = now
        pool = self._kv.status["g2"]["pool"]
        stats.set_gauge("vllm:ashlar_g2_used", (pool.total - pool.reset) / pool.total)
        return stats

    def shutdown(self) -> None:
        """What is in G2 goes down to files and volumes, as far as the limit allows."""
        if self._kv.closed:
            return
        self._hints.close()
        try:
            self._kv.shutdown(timeout=self._shutdown_limit)
        except AshlarError as error:
            _log.warning("ashlar: %s", error)
        self._store.close()
        self._kv.close(timeout=self._shutdown_limit)
        self._region.close()


class AshlarOffloadingSpec(OffloadingSpec):
    """What kv_connector_extra_config names: see docs/guide/vllm.md for the settings."""

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """The counters and gauges of get_stats()."""
        counters = {
            "hits_host": "Blocks that were hits in host memory (G2).",
            "hits_disk": "Blocks that were hits in files (G3).",
            "hits_volume": "Blocks that were hits on volumes (G4).",
            "hits_peer": "Blocks that were hits in the memory of other nodes.",
            "misses": "Look-ups of blocks that no tier had, or not in time.",
            "late": "Misses because the fetch limit passed.",
            "stored": "Blocks that were stored in G2.",
            "loaded": "Blocks that were loaded from G2.",
            "not_stored": "Blocks that were not stored because G2 was in use entirely.",
            "collided": "Blocks that were not stored because another block has their name.",
            "damaged": "Blocks of loads that found damage in G2, which were dropped.",
            "abandoned": "Blocks of jobs that were under way during a reset.",
            **HintDesk.DOCUMENTATION,
        }
        definitions: dict[str, Any] = {f"vllm:ashlar_{name}": OffloadingCounterMetadata(documentation=text)
                                       for name, text in counters.items()}
        definitions["vllm:ashlar_g2_used"] = OffloadingGaugeMetadata(
            documentation="The share of G2 that has blocks, from 0 to 1.")
        return definitions

    def __init__(self, config: OffloadingConfig, **kwargs: Any):
        """ValueError says which setting is missing, or which engine cannot be served. kwargs: what versions
        of vLLM after 0.32 may add, for its own class."""
        super().__init__(config, **kwargs)
        unknown = set(self.extra_config) - _SETTINGS - _OF_VLLM
        if unknown:
            _log.warning("ashlar: settings that nobody reads: %s; known are %s", ", ".join(sorted(unknown)),
                         ", ".join(sorted(_SETTINGS | _OF_VLLM)))
        if "g2_bytes" not in self.extra_config:
            raise ValueError("ashlar: give g2_bytes in kv_connector_extra_config: the host memory for "
                             "blocks, such as \"8GiB\"")
        if self.blocks_per_chunk > 1 and len(config.groups) > 1:
            # Windows leave holes in chunks, and vLLM does not say where.
            raise ValueError("ashlar: this model has several groups of layers; leave blocks_per_chunk and "
                             "block_size out of kv_connector_extra_config")
        if config.parallel.pp_size > 1:
            raise ValueError("ashlar: stages of a pipeline have blocks of different layers; "
                             "pipeline_parallel_size must be 1")
        kept = [name for name in ("g3_path", "volumes", "remote") if self.extra_config.get(name)]
        settings = engine_settings()
        revision = settings.model_config.revision if settings else None
        if kept and not self.extra_config.get("model"):
            why = ""
            if settings is None:
                why = "vLLM does not tell what it was started with, so nothing tells its blocks from others"
            elif not weights_of(config.model.name, revision):
                why = (f"the weights of {config.model.name} are not in a folder or in the Hugging Face "
                       "cache, so nothing tells them from others of that name")
            if why:
                raise ValueError(f"ashlar: {', '.join(kept)}: {why}; give \"model\", a name for these "
                                 "weights and all that changes their values, in kv_connector_extra_config")
        self.replicated_layout = config.replicated_layout
        self._copies = 1 if config.replicated_layout else config.parallel.world_size
        self._rank_bytes = config.worker_kv_bytes_per_block * self.blocks_per_chunk
        if self._rank_bytes <= 0:
            raise ValueError("ashlar: the engine has no KV cache to offload")
        self._slot_bytes = -(-self._rank_bytes * self._copies // 4096) * 4096
        self._slots = bytes_of(self.extra_config["g2_bytes"], "g2_bytes") // self._slot_bytes
        if self._slots < 16:
            raise ValueError(f"ashlar: g2_bytes has room for {self._slots} blocks of {self._slot_bytes} "
                             f"bytes; give at least {16 * self._slot_bytes}")
        self._fingerprint = fingerprint_of(config, settings)
        self._digest = hashlib.sha256(self._fingerprint.encode()).digest()
        # Models change their configuration while they load, which happens in the workers alone.
        self._shape = hashlib.sha256(fingerprint_of(config, None).encode()).digest()
        self.checks_loads = False  # only a connector that can report a failed load may set it
        self._manager: AshlarOffloadingManager | None = None
        self._worker: AshlarOffloadingWorker | None = None

    def _region(self, rank: int | None) -> HostRegion:
        return HostRegion(self.config.engine_id, ranks=self.config.parallel.world_size, slots=self._slots,
                          slot_bytes=self._slot_bytes, fingerprint=self._shape, rank=rank)

    def get_manager(self) -> OffloadingManager:
        """The one manager, made at the first call, in the scheduler."""
        if self._manager is None:
            self._manager = self._make_manager()
        return self._manager

    def _make_manager(self) -> AshlarOffloadingManager:
        extra = self.extra_config
        region = self._region(None)
        options: dict[str, Any] = {}
        paths = extra.get("g3_path")
        if paths:
            # A file of its own for each fingerprint and replica: another configuration finds an empty one.
            names = [paths] if isinstance(paths, str) else list(paths)
            suffix = f".{self._digest.hex()[:16]}"
            if self.config.parallel.data_parallel_size > 1:
                suffix += f".{self.config.parallel.data_parallel_index}"
            options["g3_path"] = [name + suffix for name in names]
            size = bytes_of(extra.get("g3_bytes", "16GiB"), "g3_bytes")
            options["g3_blocks"] = max(16, size // self._slot_bytes)
            options["survive_power_loss"] = bool(extra.get("survive_power_loss", False))
        volumes = extra.get("volumes") or []
        if volumes:
            options["g4_blocks"] = int(extra.get("volume_blocks", 1 << 20))
        if extra.get("remote"):
            options["remote"] = dict(extra["remote"])
        kv = KvBlockManager(
            layers=1, outer=1, heads=1, head_dim=self._slot_bytes, block_size=1, dtype="u8",
            model=self._fingerprint, g1_blocks=1, g2_blocks=self._slots,
            g2_memory=region.array.reshape(self._slots, 1, 1, 1, 1, self._slot_bytes),
            eviction=str(extra.get("eviction", "retention")),  # as lru, with what hints ask
            events=1 << 16 if self.kv_events_config.enable_kv_cache_events else 0,
            max_pins=int(self._slots * float(extra.get("max_pinned_share", 0.25))), **options)
        for volume in volumes:
            if not isinstance(volume, Mapping) or not {"name", "kind", "location"} <= set(volume):
                raise ValueError(f"ashlar: a volume is {volume!r}; give name, kind and location")
            kv.register_volume(volume["name"], volume["kind"], volume["location"],
                               options={k: str(v) for k, v in volume.get("options", {}).items()},
                               write=bool(volume.get("write", True)))
        speed = extra.get("compute_tokens_per_second")
        tokens = self.config.cache.tokens_per_hash * self.blocks_per_chunk
        store = HostStore(kv, fetch_limit=float(extra.get("fetch_limit", 30)),
                          compute_blocks_per_second=float(speed) / tokens if speed else None)
        _log.info("ashlar: G2 has %d slots of %d bytes; %s", self._slots, self._slot_bytes, self._fingerprint)
        return AshlarOffloadingManager(region, kv, store, events=self.kv_events_config.enable_kv_cache_events,
                                       shutdown_limit=float(extra.get("shutdown_limit", 30)),
                                       block_bytes=self._rank_bytes,
                                       writers=1 if self.replicated_layout and
                                       not self.config.canonical_layout else None)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The one worker of this rank, made at the first call."""
        if self._worker is None:
            rank = self.config.parallel.rank
            region = self._region(rank)
            tensors = [each.tensor for each in kv_caches.tensors]
            copier = PageCopier(tensors, self._pieces(kv_caches, rank), region.array, self.blocks_per_chunk)
            cuda = bool(tensors) and tensors[0].is_cuda
            # Ranks write each other's bytes in the canonical layout: no part is one rank's.
            part = None
            if self.checks_loads and not self.config.canonical_layout and self._rank_bytes % 4 == 0:
                part = (0 if self.replicated_layout else rank * self._rank_bytes, self._rank_bytes)
            self._worker = AshlarOffloadingWorker(copier, region, rank, cuda, part)
        return self._worker

    # Where each piece of a page lies in a slot: rank by rank, or at the places that do not depend on ranks.
    def _pieces(self, kv_caches: CanonicalKVCaches, rank: int) -> list[list[Piece]]:
        canonical = self.config.canonical_layout
        sizes = [each.page_size_bytes for each in kv_caches.tensors]
        if canonical:
            sizes = [0] * len(sizes)
            for refs in kv_caches.group_data_refs:
                for ref in refs:
                    if ref.mapping is None:
                        raise ValueError("ashlar: canonical_layout is set, and vLLM knows no such layout for "
                                         "a layer of this model; leave it out")
                    sizes[ref.tensor_idx] = max(sizes[ref.tensor_idx],
                                                ref.mapping.canonical_page_size_bytes)
        first = 0 if canonical or self.replicated_layout else rank * self._rank_bytes
        places = []
        for size in sizes:
            places.append(first)
            first += size * self.blocks_per_chunk
        if first > self._slot_bytes or (not canonical and sum(sizes) > self.config.worker_kv_bytes_per_block):
            raise ValueError(f"ashlar: a block of rank {rank} has {sum(sizes)} bytes, the scheduler expects "
                             f"{self.config.worker_kv_bytes_per_block}")
        groups = []
        for refs in kv_caches.group_data_refs:
            pieces = []
            for ref in refs:
                place, stride = places[ref.tensor_idx], sizes[ref.tensor_idx]
                if not canonical:
                    pieces.append(Piece(ref.tensor_idx, 0, place, ref.page_size_bytes, stride))
                    continue
                mapping = ref.mapping
                for run in mapping.runs:
                    for i in range(run.num_fragments):
                        pieces.append(Piece(ref.tensor_idx, run.local_offset + i * run.local_stride,
                                            place + run.canonical_offset + i * run.canonical_stride,
                                            run.fragment_size, stride, mapping.num_writers,
                                            mapping.writer_index))
            groups.append(pieces)
        return groups
