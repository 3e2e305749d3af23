"""What runs in vLLM's workers: threads that copy between the KV cache and the slots of G2."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

from ashlar import _native
from ashlar._host_region import HostRegion
from ashlar._page_copies import PageCopier

# Of a load that the engine's step waits for; the cores that compute are idle meanwhile.
_MOST_THREADS = 4
# Where vLLM names a worker's cores for OpenMP, which then binds the worker's thread to the first of them.
_NAMED_CORES = {"KMP_AFFINITY": r"proclist=\[([\d, -]+)\]", "GOMP_CPU_AFFINITY": r"^([\d, -]+)$",
                "OMP_PLACES": r"^\{([\d, ]+)\}$"}


def named_cores(environment: Mapping[str, str]) -> set[int]:
    """The cores that OpenMP was told to use; empty: all of the process, or they are named in another way."""
    for name, form in _NAMED_CORES.items():
        found = re.search(form, environment.get(name, ""))
        if found:
            ranges = re.findall(r"(\d+)(?:-(\d+))?", found[1])
            return {core for first, last in ranges for core in range(int(first), int(last or first) + 1)}
    return set()


@contextlib.contextmanager
def spread(cores: set[int]) -> Iterator[int]:
    """Lets this thread and those that it starts use these cores; yields how many of them there are."""
    own = os.sched_getaffinity(0)
    try:
        with contextlib.suppress(OSError):  # none of them is this process's
            os.sched_setaffinity(0, own | cores)
        yield len(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, own)


class SlotSpec(LoadStoreSpec):
    """The slots of G2 that a job copies."""

    def __init__(self, job: int, slots: list[int], writers: list[int] | None = None):
        self.job = job
        self.slots = slots
        self.writers = writers or []  # of a load: the mark of each slot's store (HostStore)
        self.in_step = False  # a load right before the forward pass that uses it

    def __repr__(self) -> str:
        return f"SlotSpec(job={self.job}, slots={self.slots})"


class AshlarOffloadingWorker(OffloadingWorker):
    """Runs in each worker: copies between its KV cache and the slots of G2, loads before stores."""

    def __init__(self, copier: PageCopier, region: HostRegion, rank: int, cuda: bool,
                 part: tuple[int, int] | None):
        self._cores = named_cores(os.environ)
        self._part = part  # of a slot, of this rank: begin and size; None: loads are not checked
        self._copier = copier
        self._region = region
        self._rank = rank
        self._cuda = cuda
        self._changed = threading.Condition()
        self._pending: set[int] = set()
        self._finished: list[TransferResult] = []
        self._failure: BaseException | None = None
        self._queues = [queue.SimpleQueue(), queue.SimpleQueue()]
        self._threads = [threading.Thread(target=self._run, args=(its,), name=name, daemon=True)
                         for its, name in zip(self._queues, ("ashlar-load", "ashlar-store"))]
        for thread in self._threads:
            thread.start()

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._submit(1, job_id, src_spec, dst_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._submit(0, job_id, dst_spec, src_spec)

    def load_now(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> TransferResult:
        """Loads before it returns, in this thread and others."""
        assert isinstance(src_spec, SlotSpec)
        begun = time.perf_counter()
        after = self._passed()
        places = self._places(dst_spec, src_spec)
        with spread(self._cores) as cores:
            size, done = self._load(src_spec, places, after, min(cores, _MOST_THREADS))
        self._region.ended(self._rank, src_spec.job, not done)
        return TransferResult(job_id, done, size, time.perf_counter() - begun)

    # Behind the forward pass, which writes the pages of a store and may still use those of a load.
    def _passed(self) -> object:
        if not self._cuda:
            return None
        after = torch.cuda.Event()
        after.record()
        return after

    def _places(self, pages: GPULoadStoreSpec, slots: SlotSpec) -> list:
        return self._copier.places(pages.block_ids, pages.group_sizes, pages.block_indices, slots.slots)

    def _submit(self, which: int, job_id: int, pages: GPULoadStoreSpec, slots: LoadStoreSpec) -> bool:
        assert isinstance(slots, SlotSpec)
        after, places = self._passed(), self._places(pages, slots)
        with self._changed:
            self._pending.add(job_id)
        self._queues[which].put((job_id, slots, places, after, which == 1))
        return True

    # Where this rank's part of each slot lies.
    def _parts(self, slots: list[int]) -> np.ndarray:
        assert self._part is not None
        rows = self._region.array
        begin = np.asarray(slots, np.uint64) * np.uint64(rows.strides[0]) + np.uint64(rows.ctypes.data)
        return begin + np.uint64(self._part[0])

    # Loads; False: a slot differs from what this rank wrote to it, and the pages are not to be used. Slots
    # that came up from another tier were checked there.
    def _load(self, spec: SlotSpec, places: list, after: object, threads: int) -> tuple[int, bool]:
        if self._part is None:
            return self._copier.load(places, after, threads), True
        seals = self._region.seals(self._rank, spec.slots)
        writers = np.asarray(spec.writers or [0] * len(spec.slots), np.uint64)
        ours = (writers != 0) & (seals[:, 0] == writers)
        parts, size = self._parts(spec.slots), self._part[1]
        found = self._copier.load_checked(places, np.where(ours, parts, np.uint64(0)), size, threads)
        if found is not None:
            return size * len(spec.slots), bool((found == seals[:, 1])[ours].all())
        found = np.array(_native._checksums(parts[ours], size), np.uint64)
        if not (found == seals[ours, 1]).all():
            return 0, False
        return self._copier.load(places, after, threads), True

    def _store(self, spec: SlotSpec, places: list, after: object) -> tuple[int, bool]:
        if not self._copier.is_whole(places):
            return 0, False  # a window left a hole in a chunk: it is not stored
        size = self._copier.store(places, after)
        if self._part is not None:
            self._region.seal(self._rank, spec.slots, _native._slot_marks(spec.job, spec.slots),
                              _native._checksums(self._parts(spec.slots), self._part[1]))
        return size, True

    def _run(self, jobs: queue.SimpleQueue) -> None:
        while (job := jobs.get()) is not None:
            job_id, spec, places, after, is_store = job
            begun = time.perf_counter()
            size, done, failure = 0, True, None
            try:
                size, done = (self._store(spec, places, after) if is_store else
                              self._load(spec, places, after, 1))
                self._region.ended(self._rank, spec.job, not done)
            except BaseException as error:  # told to the thread that asks, which ends the engine
                failure = error
            with self._changed:
                self._failure = self._failure or failure
                self._pending.discard(job_id)
                # vLLM knows no store that fails: the manager hears of it from the region.
                self._finished.append(TransferResult(job_id, done or is_store, size,
                                                     time.perf_counter() - begun))
                self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError("ashlar: a copy between the KV cache and G2 failed; its pages are not what "
                               "they should be") from self._failure

    def get_finished(self) -> list[TransferResult]:
        with self._changed:
            self._check()
            finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._pending & job_ids)
            self._check()

    def shutdown(self) -> None:
        for jobs in self._queues:
            jobs.put(None)
        for thread in self._threads:
            thread.join(timeout=30)
        self._copier.close()
        self._region.close()
