"""AshlarConnector: vLLM's OffloadingConnector with loads that may fail, and are then computed or refused.

    --kv-transfer-config '{"kv_connector": "AshlarConnector",
      "kv_connector_module_path": "ashlar.vllm_connector", "kv_role": "kv_both",
      "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"g2_bytes": "8GiB"}}'

The same tiers and settings as ashlar.vllm. In addition a worker keeps a checksum of every slot that it writes
and compares it before it loads: memory that was damaged in between is found, its blocks are dropped, and the
request goes on as kv_load_failure_policy says. It costs one more pass over the bytes, in threads of the
worker. And what became of a request's KV hints is in the kv_transfer_params of its answer:

    {"ashlar_hints": [{"action_id": "a-1", "outcome": "clipped", "why": "3 of 4 blocks are here"}]}
"""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from ashlar.vllm import AshlarOffloadingManager


def _name_the_spec(vllm_config: VllmConfig) -> None:
    assert vllm_config.kv_transfer_config is not None
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    extra.setdefault("spec_name", "AshlarOffloadingSpec")
    extra.setdefault("spec_module_path", "ashlar.vllm")


class _CheckingWorker(OffloadingConnectorWorker):
    """Tells loads that failed from those that arrived."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.failed: set[str] = set()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        assert self.worker is not None
        received: set[str] = set()
        for result in self.worker.get_finished():
            request = self._load_jobs.pop(result.job_id, None)
            assert result.success or request is not None, "a store cannot fail"
            if result.success and result.transfer_time is not None and result.transfer_size is not None:
                stats = self._connector_worker_meta.transfer_stats
                (stats.store if request is None else stats.load).record(result.transfer_size,
                                                                        result.transfer_time)
            self._connector_worker_meta.mark_completed(result.job_id)
            if request is not None:
                received.add(request)
                if not result.success:
                    self.failed.add(request)
        return set(), received


class AshlarConnector(OffloadingConnector):
    """For vLLM's configuration; see the module."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig):
        """Names the spec of ashlar.vllm where the configuration names none."""
        _name_the_spec(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
        if self.connector_worker is not None:
            spec = self.connector_worker.spec
            spec.checks_loads = True
            self.connector_worker = _CheckingWorker(spec, vllm_config, kv_cache_config)

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
        assert self.connector_scheduler is not None
        manager = self.connector_scheduler.manager
        assert isinstance(manager, AshlarOffloadingManager)
        outcomes = manager.hint_outcomes(request.request_id) if request.kv_hints is not None else []
        return {"ashlar_hints": outcomes} if outcomes else {}

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The requests whose transfers ended, and those whose loads found damage."""
        sent, received = self.get_finished(finished_req_ids)
        failed: set[str] = set()
        if isinstance(self.connector_worker, _CheckingWorker):
            failed, self.connector_worker.failed = self.connector_worker.failed, set()
        return KVConnectorTransferResults(finished_sending=sent, finished_recving=received,
                                          failed_recving=failed)
