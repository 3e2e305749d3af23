"""Hints that come with a request of vLLM's (KvHintsEnvelope): what an orchestrator wants kept, or brought up.

    kv.retain    {"block_hashes": […], "priority": 0 to 100, "seconds": 60}
    kv.pin       {"block_hashes": […], "seconds": 60}
    kv.demote    {"block_hashes": […]}             to G3 or a volume, and first to leave G2
    kv.prefetch  {"block_hashes": […], "seconds": 5}

A hash is the engine's digest of a block in hex, of group 0 unless "group" says another. A hint is advice: it
is accepted, clipped (for less time than asked, or for some of the blocks), deferred (until blocks arrive) or
refused, and a request goes on as if it had not come.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

from ashlar import AshlarError, HostStore, KvBlockManager

MAX_ACTIONS = 64
MAX_BLOCKS = 4096
MAX_SECONDS = 3600.0
MAX_DEFERRED = 1024


class HintOutcome(NamedTuple):
    """What became of one action: its id, the outcome, and why."""

    action_id: str
    outcome: str
    why: str


class HintDesk:
    """Carries out hints. Thread safety: the scheduler's thread alone."""

    DOCUMENTATION = {
        "hints_accepted": "Actions of KV hints that were carried out.",
        "hints_clipped": "Actions of KV hints that were carried out in part, or for less time.",
        "hints_deferred": "Actions of KV hints that wait for their blocks.",
        "hints_refused": "Actions of KV hints that were not carried out.",
    }

    def __init__(self, kv: KvBlockManager):
        self._kv = kv
        self._pins: deque[Any] = deque()
        self._fetches: deque[Any] = deque()
        self.counters = dict.fromkeys(self.DOCUMENTATION, 0)
        self.outcomes: deque[HintOutcome] = deque(maxlen=1024)

    @property
    def busy(self) -> bool:
        return bool(self._fetches)

    def forget(self) -> None:
        """Ends all pins and fetches."""
        for pin in self._pins:
            pin.release()
        self._pins.clear()
        for fetch in self._fetches:
            fetch.cancel()
        self._fetches.clear()

    def step(self) -> None:
        """Drops what has ended."""
        self._pins = deque(pin for pin in self._pins if pin.active)
        self._fetches = deque(fetch for fetch in self._fetches if not fetch.done)

    def take(self, envelope: Any) -> list[HintOutcome]:
        """Carries out the actions of an envelope, in order."""
        taken = []
        for i, action in enumerate(envelope.actions):
            if i >= MAX_ACTIONS:
                outcome, why = "refused", f"an envelope may have {MAX_ACTIONS} actions"
            else:
                try:
                    outcome, why = self._carry_out(action)
                except (AshlarError, ValueError, TypeError, KeyError, OverflowError) as error:
                    outcome, why = "refused", str(error)
            self.counters["hints_" + outcome] += 1
            taken.append(HintOutcome(str(action.action_id), outcome, why))
        self.outcomes.extend(taken)
        return taken

    def _carry_out(self, action: Any) -> tuple[str, str]:
        handlers = {"kv.retain": self._retain, "kv.pin": self._pin, "kv.demote": self._demote,
                    "kv.prefetch": self._prefetch}
        if action.action_type not in handlers:
            return "refused", f"{action.action_type!r} is none of {', '.join(handlers)}"
        if action.action_version.split(".")[0] != "1":
            return "refused", f"version {action.action_version!r}; this is version 1"
        payload = action.payload
        hashes = payload["block_hashes"]
        clipped = ""
        if len(hashes) > MAX_BLOCKS:
            hashes, clipped = hashes[:MAX_BLOCKS], f"the first {MAX_BLOCKS} blocks"
        if not hashes:
            return "refused", "block_hashes is empty"
        group = int(payload.get("group", 0)).to_bytes(4, "big")
        names = [HostStore.name(bytes.fromhex(each) + group) for each in hashes]
        seconds = payload.get("seconds")
        if seconds is not None:
            seconds = float(seconds)
            if not (math.isfinite(seconds) and seconds > 0):
                return "refused", f"seconds is {seconds}; it must be above 0"
            if seconds > MAX_SECONDS:
                seconds, clipped = MAX_SECONDS, f"{MAX_SECONDS:.0f} s at most"
        outcome, why = handlers[action.action_type](names, payload, seconds)
        if outcome == "accepted" and clipped:
            return "clipped", clipped
        return outcome, why

    def _retain(self, names: list, payload: dict, seconds: float | None) -> tuple[str, str]:
        found = self._kv.set_retention(names, int(payload["priority"]), seconds)
        return self._some(found, names)

    def _some(self, found: int, names: list) -> tuple[str, str]:
        if found == 0:
            return "refused", "no tier has any of the blocks"
        if found < len(names):
            return "clipped", f"{found} of {len(names)} blocks are here"
        return "accepted", ""

    def _pin(self, names: list, payload: dict, seconds: float | None) -> tuple[str, str]:
        if len(self._pins) >= MAX_DEFERRED:
            return "refused", f"{MAX_DEFERRED} pins are held already"
        pin = self._kv.pin(names, seconds or 60.0)
        self._pins.append(pin)
        if pin.pinned == 0:
            return "deferred", "no tier has any of the blocks; they are pinned when they arrive"
        return "accepted", ""

    def _demote(self, names: list, payload: dict, seconds: float | None) -> tuple[str, str]:
        status = self._kv.status
        below = "g3" if status["g3"] is not None else "g4" if status["g4"] is not None else None
        found = self._kv.set_retention(names, 0)
        if below is None or found == 0:
            return self._some(found, names)
        self._kv.offload(names, tier=below)
        return self._some(found, names)

    def _prefetch(self, names: list, payload: dict, seconds: float | None) -> tuple[str, str]:
        if len(self._fetches) >= MAX_DEFERRED:
            return "refused", f"{MAX_DEFERRED} fetches are under way already"
        self._fetches.append(self._kv.prefetch(names, timeout=seconds or 10.0))
        return "deferred", "the blocks come up in the background"
