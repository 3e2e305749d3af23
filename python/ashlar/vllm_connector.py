"""AshlarConnector: vLLM's OffloadingConnector with loads that may fail, and are then computed or refused.

    --kv-transfer-config '{"kv_connector": "AshlarConnector",
      "kv_connector_module_path": "ashlar.vllm_connector", "kv_role": "kv_both",
      "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"g2_bytes": "8GiB"}}'

The same tiers and settings as ashlar.vllm. In addition a worker keeps a checksum of every slot that it writes
and compares it before it loads: memory that was damaged in between is found, its blocks are dropped, and the
request goes on as kv_load_failure_policy says. Small loads happen within the step that computes with them
(_vllm_in_step.py). And what became of a request's KV hints is in the kv_transfer_params of its answer:

    {"ashlar_hints": [{"action_id": "a-1", "outcome": "clipped", "why": "3 of 4 blocks are here"}]}
"""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from ashlar._vllm_in_step import InStepLoads, limit_of
from ashlar._vllm_worker import AshlarOffloadingWorker, SlotSpec
from ashlar.vllm import AshlarOffloadingManager


def _name_the_spec(vllm_config: VllmConfig) -> None:
    assert vllm_config.kv_transfer_config is not None
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    extra.setdefault("spec_name", "AshlarOffloadingSpec")
    extra.setdefault("spec_module_path", "ashlar.vllm")


class _CheckingWorker(OffloadingConnectorWorker):
    """Tells loads that failed from those that arrived."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.failed: set[str] = set()
        self.invalid: set[int] = set()  # blocks of loads within the step that found damage

    def start_kv_transfers(self, metadata: OffloadingConnectorMetadata) -> None:
        """Ends the loads that this step needs; begins all other transfers."""
        assert isinstance(self.worker, AshlarOffloadingWorker)
        for job_id, job in list(metadata.load_jobs.items()):
            if isinstance(job.src_spec, SlotSpec) and job.src_spec.in_step:
                del metadata.load_jobs[job_id]
                result = self.worker.load_now(job_id, job.src_spec, job.dst_spec)
                if result.success:
                    self._record(result, True)
                else:
                    self.invalid.update(int(each) for each in job.dst_spec.block_ids)
                self._connector_worker_meta.mark_completed(job_id)
        super().start_kv_transfers(metadata)

    def _record(self, result: TransferResult, is_load: bool) -> None:
        if result.transfer_time is not None and result.transfer_size is not None:
            stats = self._connector_worker_meta.transfer_stats
            (stats.load if is_load else stats.store).record(result.transfer_size, result.transfer_time)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        assert self.worker is not None
        received: set[str] = set()
        for result in self.worker.get_finished():
            request = self._load_jobs.pop(result.job_id, None)
            assert result.success or request is not None, "a store cannot fail"
            if result.success:
                self._record(result, request is not None)
            self._connector_worker_meta.mark_completed(result.job_id)
            if request is not None:
                received.add(request)
                if not result.success:
                    self.failed.add(request)
        return set(), received


class AshlarConnector(OffloadingConnector):
    """For vLLM's configuration; see the module."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig,
                 **kwargs: Any):
        """Names the spec of ashlar.vllm where the configuration names none. kwargs: what versions of vLLM
        after 0.32 may add, for its own connector."""
        _name_the_spec(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config, **kwargs)
        self._in_step: InStepLoads | None = None
        if self.connector_worker is not None:
            spec = self.connector_worker.spec
            spec.checks_loads = True
            self.connector_worker = _CheckingWorker(spec, vllm_config, kv_cache_config)
        elif self.connector_scheduler is not None:
            limit = limit_of(vllm_config, kv_cache_config)
            if limit:
                self._in_step = InStepLoads(self.connector_scheduler, self._manager.block_bytes, limit)

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Any:
        """As of OffloadingConnector, with the spec named."""
        _name_the_spec(vllm_config)
        return super().build_prom_metrics(vllm_config, *args, **kwargs)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As of OffloadingConnector, with what became of the request's hints as `ashlar_hints`."""
        outcomes = self._hint_outcomes(request)
        held, params = super().request_finished(request, block_ids)
        return held, {**(params or {}), **outcomes} or None

    def request_finished_all_groups(self, request: Request, block_ids: tuple[list[int], ...]
                                    ) -> tuple[bool, dict[str, Any] | None]:
        """The same for a request with several groups of layers."""
        outcomes = self._hint_outcomes(request)
        held, params = super().request_finished_all_groups(request, block_ids)
        return held, {**(params or {}), **outcomes} or None

    def _hint_outcomes(self, request: Request) -> dict[str, Any]:
        outcomes = self._manager.hint_outcomes(request.request_id) if request.kv_hints is not None else []
        return {"ashlar_hints": outcomes} if outcomes else {}

    @property
    def _manager(self) -> AshlarOffloadingManager:
        manager = self.scheduler.manager
        assert isinstance(manager, AshlarOffloadingManager)
        return manager

    # ---- loads within the step

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int
                                   ) -> tuple[int | None, bool]:
        """As of OffloadingConnector; a small load is promised within the step."""
        if self._in_step is not None and self._in_step.must_wait(request, num_computed_tokens):
            return None, False
        found, later = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if found and self._in_step is not None:
            later = not self._in_step.choose(request, num_computed_tokens, found)
        return found, later

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
                                 ) -> None:
        """Plans the load, within the step or behind it."""
        shown = None
        if self._in_step is not None and num_external_tokens > 0:
            shown = self._in_step.shown(request, blocks)
        super().update_state_after_alloc(request, blocks if shown is None else shown, num_external_tokens)
        if shown is not None:
            assert self._in_step is not None
            self._in_step.begun(request, blocks)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """As of OffloadingConnector."""
        def build() -> KVConnectorMetadata:
            return super(AshlarConnector, self).build_connector_meta(scheduler_output)
        return build() if self._in_step is None else self._in_step.plan(build)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks of loads within the step that found damage."""
        invalid: set[int] = set()
        if isinstance(self.connector_worker, _CheckingWorker):
            invalid, self.connector_worker.invalid = self.connector_worker.invalid, set()
        return invalid

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """As of OffloadingConnector, after what failed loads leave behind was dealt with."""
        if self._in_step is not None and connector_output.invalid_block_ids:
            assert self._kv_cache_manager is not None
            self._in_step.fail(connector_output.invalid_block_ids, self._kv_cache_manager,
                               self._manager.spoil)
        super().update_connector_output(connector_output)
        if self._in_step is not None:
            self._in_step.reap()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The requests whose transfers ended, and those whose loads found damage."""
        sent, received = self.get_finished(finished_req_ids)
        failed: set[str] = set()
        if isinstance(self.connector_worker, _CheckingWorker):
            failed, self.connector_worker.failed = self.connector_worker.failed, set()
        return KVConnectorTransferResults(finished_sending=sent, finished_recving=received,
                                          failed_recving=failed)
