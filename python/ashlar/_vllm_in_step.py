"""Loads within the step that uses them, for AshlarConnector.

vLLM's offloading connector loads between two steps: one step begins the load, a later one finds that it has
ended, the next computes. A small load is over sooner than those steps are, so it is done in the worker right
before the forward pass instead. The request's blocks are then in vLLM's prefix cache from the moment when it
is scheduled, before their bytes are there, which is sound only with what this module adds:

- Until the step has ended, no request that finds one of these blocks in the prefix cache is scheduled.
- A load that found damage names its blocks (get_block_ids_with_load_errors). They leave the prefix cache with
  all that follows them, so that no request finds them while they are computed again, in one step or in more;
  and what was computed behind them in this step is not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
    TransferJobStatus,
)
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.request import Request

from ashlar._vllm_fingerprint import bytes_of
from ashlar._vllm_worker import SlotSpec

DEFAULT_LIMIT = 64 << 20


def limit_of(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
    """Bytes that one step may load in each worker; 0: every load is between steps."""
    assert vllm_config.kv_transfer_config is not None
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    on_host = vllm_config.device_config.device_type == "cpu"
    asked = extra.get("sync_load_bytes", DEFAULT_LIMIT if on_host else 0)
    limit = 0 if str(asked).strip() == "0" else bytes_of(asked, "sync_load_bytes")
    groups = kv_cache_config.kv_cache_groups
    # vLLM takes failed blocks of one group only; and it must not plan the next step before it hears of them.
    # Its model runner V2 goes on with a running request where it was, whatever has to be computed again.
    possible = (len(groups) == 1 and isinstance(groups[0].kv_cache_spec, FullAttentionSpec)
                and not vllm_config.scheduler_config.async_scheduling
                and vllm_config.speculative_config is None
                and not getattr(vllm_config, "use_v2_model_runner", False))
    return limit if possible else 0


class _Load(NamedTuple):
    """A load under way: vLLM's status of its job, and where it goes."""

    status: TransferJobStatus
    blocks: frozenset[int]
    behind: frozenset[int]  # these, and those of what the step computes behind them


class InStepLoads:
    """The scheduler's side. Thread safety: the scheduler's thread alone."""

    def __init__(self, scheduler: OffloadingConnectorScheduler, block_bytes: int, limit: int):
        """block_bytes: of one block in one worker. limit: see limit_of()."""
        self._scheduler = scheduler
        self._block_bytes = block_bytes
        # A request may find some blocks of a chunk in the prefix cache and have another key for the chunk.
        self._limit = limit if scheduler.config.blocks_per_chunk == 1 else 0
        self._group = scheduler.config.kv_group_configs[0]
        self._planned = 0  # bytes of this step
        self._chosen: set[str] = set()  # requests that were promised a load within the step
        self._loads: dict[int, _Load] = {}  # by vLLM's number of the job

    def must_wait(self, request: Request, computed: int) -> bool:
        """Whether a request found blocks in the prefix cache whose bytes are still to come."""
        self._chosen.discard(request.request_id)
        if not self._loads or computed == 0:
            return False
        status = self._scheduler._req_status[request.request_id]
        status.update_offload_keys()
        blocks = -(-computed // self._group.tokens_per_block)
        found = status.group_states[0].offload_keys[:blocks]
        return any(not load.status.keys.isdisjoint(found) for load in self._loads.values())

    def choose(self, request: Request, computed: int, found: int) -> bool:
        """Whether `found` tokens behind `computed` ones are loaded within the step."""
        blocks = -(-found // self._group.tokens_per_block)
        # A request all of whose tokens are found computes its last one again, which vLLM arranges for loads
        # between steps alone.
        if (self._planned + blocks * self._block_bytes > self._limit
                or computed + found >= request.num_tokens):
            return False
        self._chosen.add(request.request_id)
        return True

    def shown(self, request: Request, blocks: Any) -> Any:
        """What vLLM's connector is to see of a request's blocks; None: its load is between steps.

        The connector tells the blocks to load by their lack of a hash; these have theirs already."""
        if request.request_id not in self._chosen:
            return None
        status = self._scheduler._req_status[request.request_id]
        first = status.num_locally_computed_tokens // self._group.tokens_per_block
        each_block = list(blocks.blocks[self._group.group_idx])
        each_block[first:] = [SimpleNamespace(block_id=each.block_id, is_null=each.is_null, block_hash=None)
                              for each in each_block[first:]]
        return SimpleNamespace(blocks=(each_block,))

    def begun(self, request: Request, blocks: Any) -> None:
        """vLLM's connector has made the job of the load that was shown last."""
        self._chosen.discard(request.request_id)
        number, job = next(reversed(self._scheduler._current_batch_load_jobs.items()))
        assert job.req_id == request.request_id and isinstance(job.src_spec, SlotSpec)
        job.src_spec.in_step = True
        loaded = frozenset(int(each) for each in job.dst_spec.block_ids)
        held = [each.block_id for each in blocks.blocks[self._group.group_idx]]
        first = next((i for i, block in enumerate(held) if block in loaded), len(held))
        self._planned += len(loaded) * self._block_bytes
        self._loads[number] = _Load(self._scheduler._jobs[number], loaded, frozenset(held[first:]))

    def plan(self, build: Callable[[], Any]) -> Any:
        """build(), with which vLLM's connector ends the plan of a step. It takes for granted that a request
        that computes has no load under way, only stores."""
        self._planned = 0
        self._chosen.clear()
        for load in self._loads.values():
            load.status.is_store = True
        try:
            return build()
        finally:
            for load in self._loads.values():
                load.status.is_store = False

    def fail(self, invalid: set[int], cache: KVCacheManager, spoil: Callable[[Iterable[OffloadKey]], None]
             ) -> None:
        """Damage was found in the loads of these blocks. What their requests computed behind them is not
        found in the prefix cache, and these requests store nothing more."""
        for load in self._loads.values():
            if load.blocks.isdisjoint(invalid):
                continue
            # The request may have ended since the step was planned, and holds none of them then. They are not
            # another's yet: vLLM allocates blocks only while it plans a step, the next one after this.
            cache.evict_blocks(set(load.behind))
            status = self._scheduler._req_status[load.status.req_id]
            # A request that ends here would store its last block too, which may be computed in part.
            status.max_offload_tokens = 0
            for number in status.transfer_jobs:
                if number not in self._loads:
                    spoil(self._scheduler._jobs[number].keys)

    def reap(self) -> None:
        """Drops the loads that vLLM's connector has done with."""
        self._loads = {number: load for number, load in self._loads.items()
                       if number in self._scheduler._jobs}
