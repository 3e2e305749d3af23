"""Hints that come with a request of vLLM's (KvHintsEnvelope): what an orchestrator wants kept, or brought up.

    kv.retain    {"block_hashes": […], "priority": 0 to 100, "seconds": 60}
    kv.pin       {"block_hashes": […], "seconds": 60}
    kv.demote    {"block_hashes": […]}             to G3 or a volume, and first to leave G2
    kv.prefetch  {"block_hashes": […], "seconds": 5}
    kv.fetch     {"block_hashes": […], "source_control_endpoint": "HOST:PORT", "mode": "copy"}

A hash is the engine's digest of a block in hex, of group 0 unless "group" says another. kv.fetch is the
action that routers send today: its hashes are the low 64 bits of such digests, as numbers, and it copies the
blocks from the G2 of the named engine into this one's. A hint is advice: it is accepted, clipped (for less
time than asked, or for some of the blocks), deferred (until blocks arrive) or refused, and a request goes on
as if it had not come.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import threading
from collections import deque
from typing import Any, NamedTuple

from ashlar import AshlarError, HostStore, KvBlockManager

MAX_ACTIONS = 64
MAX_BLOCKS = 4096
MAX_SECONDS = 3600.0
MAX_DEFERRED = 1024
MAX_FETCH_SECONDS = 30.0  # an engine that ends waits for one


class HintOutcome(NamedTuple):
    """What became of one action: its id, the outcome, and why."""

    action_id: str
    outcome: str
    why: str


class _Fetch:
    """A kv.fetch that a thread carries out."""

    def __init__(self, payload: dict, seconds: float):
        self.payload = payload
        self.seconds = seconds
        self.ended: tuple[str, str] | None = None  # set by the thread, last

    @property
    def done(self) -> bool:
        return self.ended is not None

    def cancel(self) -> None:
        pass  # it ends by its time limit


class _Deferred(NamedTuple):
    """What an action waits for, and where its outcome stands."""

    work: Any
    outcomes: list[HintOutcome]
    at: int


class HintDesk:
    """Carries out hints. Thread safety: the scheduler's thread alone; it never waits for a peer, which a
    thread of its own does."""

    DOCUMENTATION = {
        "hints_accepted": "Actions of KV hints that were carried out.",
        "hints_clipped": "Actions of KV hints that were carried out in part, or for less time.",
        "hints_deferred": "Actions of KV hints that waited for their blocks; counted again when these have "
                          "arrived, or have not.",
        "hints_refused": "Actions of KV hints that were not carried out.",
    }

    def __init__(self, kv: KvBlockManager, store: HostStore):
        self._kv = kv
        self._store = store
        self._pins: deque[Any] = deque()
        self._fetches: deque[_Deferred] = deque()
        self._work: queue.SimpleQueue[_Fetch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.counters = dict.fromkeys(self.DOCUMENTATION, 0)

    @property
    def busy(self) -> bool:
        return bool(self._fetches)

    def forget(self) -> None:
        """Ends all pins and fetches."""
        for pin in self._pins:
            pin.release()
        self._pins.clear()
        for fetch in self._fetches:
            fetch.work.cancel()
        self._fetches.clear()

    def close(self) -> None:
        """Ends everything, and waits for the fetch from a peer that is under way."""
        self.forget()
        if self._thread is not None:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._work.get_nowait()
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def step(self) -> None:
        """Drops what has ended, and says how it did."""
        self._pins = deque(pin for pin in self._pins if pin.active)
        left: deque[_Deferred] = deque()
        for each in self._fetches:
            if not each.work.done:
                left.append(each)
                continue
            outcome, why = self._ended(each.work)
            self.counters["hints_" + outcome] += 1
            each.outcomes[each.at] = HintOutcome(each.outcomes[each.at].action_id, outcome, why)
        self._fetches = left

    def _ended(self, work: Any) -> tuple[str, str]:
        if isinstance(work, _Fetch):
            assert work.ended is not None
            return work.ended
        states = [state for state, _, _ in work.outcomes]
        return self._some(states.count("hit"), states)

    def take(self, envelope: Any) -> list[HintOutcome]:
        """Carries out the actions of an envelope, in order. Those that are deferred change in the list when
        they end."""
        taken: list[HintOutcome] = []
        for i, action in enumerate(envelope.actions):
            work = None
            if i >= MAX_ACTIONS:
                outcome, why = "refused", f"an envelope may have {MAX_ACTIONS} actions"
            else:
                try:
                    outcome, why, work = self._carry_out(action)
                except (AshlarError, ValueError, TypeError, KeyError, OverflowError) as error:
                    outcome, why = "refused", str(error)
            self.counters["hints_" + outcome] += 1
            taken.append(HintOutcome(str(action.action_id), outcome, why))
            if work is not None:
                self._fetches.append(_Deferred(work, taken, i))
        return taken

    def _carry_out(self, action: Any) -> tuple[str, str, Any]:
        handlers = {"kv.retain": self._retain, "kv.pin": self._pin, "kv.demote": self._demote,
                    "kv.prefetch": self._prefetch}
        known = (*handlers, "kv.fetch")
        if action.action_type not in known:
            return "refused", f"{action.action_type!r} is none of {', '.join(known)}", None
        if action.action_version.split(".")[0] != "1":
            return "refused", f"version {action.action_version!r}; this is version 1", None
        payload = action.payload
        hashes = payload["block_hashes"]
        clipped = ""
        if len(hashes) > MAX_BLOCKS:
            hashes, clipped = hashes[:MAX_BLOCKS], f"the first {MAX_BLOCKS} blocks"
        if not hashes:
            return "refused", "block_hashes is empty", None
        seconds = payload.get("seconds")
        if seconds is not None:
            seconds = float(seconds)
            if not (math.isfinite(seconds) and seconds > 0):
                return "refused", f"seconds is {seconds}; it must be above 0", None
            if seconds > MAX_SECONDS:
                seconds, clipped = MAX_SECONDS, f"{MAX_SECONDS:.0f} s at most"
        if action.action_type == "kv.fetch":
            return self._fetch(hashes, payload, seconds)
        group = int(payload.get("group", 0)).to_bytes(4, "big")
        names = [self._store.name(bytes.fromhex(each) + group) for each in hashes]
        outcome, why, work = handlers[action.action_type](names, payload, seconds)
        if outcome == "accepted" and clipped:
            return "clipped", clipped, work
        return outcome, why, work

    def _retain(self, names: list, payload: dict, seconds: float | None) -> tuple[str, str, Any]:
        found = self._kv.set_retention(names, int(payload["priority"]), seconds)
        return *self._some(found, names), None

    def _some(self, found: int, names: list) -> tuple[str, str]:
        if found == 0:
            return "refused", "no tier has any of the blocks"
        if found < len(names):
            return "clipped", f"{found} of {len(names)} blocks are here"
        return "accepted", ""

    def _pin(self, names: list, payload: dict, seconds: float | None) -> tuple[str, str, Any]:
        if len(self._pins) >= MAX_DEFERRED:
            return "refused", f"{MAX_DEFERRED} pins are held already", None
        pin = self._kv.pin(names, seconds or 60.0)
        self._pins.append(pin)
        if pin.pinned == 0:
            return "deferred", "no tier has any of the blocks; they are pinned when they arrive", None
        return "accepted", "", None

    def _demote(self, names: list, payload: dict, seconds: float | None) -> tuple[str, str, Any]:
        status = self._kv.status
        below = "g3" if status["g3"] is not None else "g4" if status["g4"] is not None else None
        found = self._kv.set_retention(names, 0)
        if below is not None and found != 0:
            self._kv.offload(names, tier=below)
        return *self._some(found, names), None

    def _prefetch(self, names: list, payload: dict, seconds: float | None) -> tuple[str, str, Any]:
        if len(self._fetches) >= MAX_DEFERRED:
            return "refused", f"{MAX_DEFERRED} fetches are under way already", None
        work = self._kv.prefetch(names, timeout=seconds or 10.0)
        return "deferred", "the blocks come up in the background", work

    # ---- from a peer

    def _fetch(self, hashes: list, payload: dict, seconds: float | None) -> tuple[str, str, Any]:
        if self._kv.remote_address is None:
            why = "this engine has no remote tier; give \"remote\" in kv_connector_extra_config"
            return "refused", why, None
        if len(self._fetches) >= MAX_DEFERRED:
            return "refused", f"{MAX_DEFERRED} fetches are under way already", None
        source = payload["source_control_endpoint"]
        numbers = [int(each) for each in hashes]
        if not isinstance(source, str) or not all(0 <= each < 1 << 64 for each in numbers):
            return "refused", "source_control_endpoint is text, block_hashes are numbers of 64 bits", None
        asked = dict(source_control_endpoint=source, block_hashes=numbers, mode=payload.get("mode", "copy"))
        work = _Fetch(asked, min(seconds or 10.0, MAX_FETCH_SECONDS))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ashlar-hints", daemon=True)
            self._thread.start()
        self._work.put(work)
        return "deferred", "the blocks come from the source in the background", work

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work.ended = self._ask(work)
            except Exception as error:  # told as the outcome
                work.ended = "refused", str(error)

    def _ask(self, work: _Fetch) -> tuple[str, str]:
        action = dict(action_id="fetch", action_type="kv.fetch", action_version="1.0", payload=work.payload)
        envelope = dict(protocol_version="1.0", message_id="fetch", actions=[action])
        said = json.loads(self._kv.execute_hints(json.dumps(envelope), timeout=work.seconds))
        [outcome] = said["outcomes"]
        names = {"done": "accepted", "clipped": "clipped", "rejected": "refused"}
        return names[outcome["outcome"]], outcome.get("reason", "")
