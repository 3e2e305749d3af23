"""What vLLM is told of the blocks in our tiers.

The library says which names appear in a tier and leave it; vLLM wants its own keys, and each block of a tier
announced once and taken back once. So the desk keeps what it has announced. Where events were lost it
compares that with what the tiers have, and a reset takes back everything.

A key is known from the moment when a request stores its block or finds it. Blocks that files have from before
a start are announced when a request first finds them: a tier has their names, not their tokens, and an event
without tokens is of no use to a router.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from vllm.v1.kv_offload.base import Locality, Medium, OffloadingEvent, OffloadKey

from ashlar import HostStore, KvBlockManager

_STORED, _REMOVED, _RESYNC, _CLEARED = 0, 1, 2, 4
# Two copies on two tiers are two blocks to whoever counts; files are the engine's own, volumes are shared.
_OWNERS = {1: None, 2: "engine", 3: "ashlar-volumes"}
_TIERS = range(1, 8)


class EventDesk:
    """Thread safety: the scheduler's thread alone. Complexity: of a step, its events; after lost ones, all
    blocks that were announced."""

    def __init__(self, kv: KvBlockManager, store: HostStore):
        self._kv = kv
        self._store = store
        self._keys: dict[bytes, tuple[Any, OffloadKey]] = {}  # by name
        self._told: dict[bytes, int] = {}  # a bit for each tier
        self._new: list[bytes] = []  # known since the last step
        self._queued: list[OffloadingEvent] = []
        self.gaps = 0  # times that events were lost

    def __len__(self) -> int:
        """How many keys it keeps."""
        return len(self._keys)

    def know(self, key: OffloadKey) -> None:
        """A request stores this block, or was promised it."""
        name = self._store.name(key)
        text = bytes(name)
        if text not in self._keys:
            self._keys[text] = (name, key)
            self._new.append(text)

    def forget(self) -> None:
        """After HostStore.forget_all(): takes everything back. Names of before mean nothing any more."""
        for name, bits in self._told.items():
            self._queued += [self._event(name, tier, True) for tier in _TIERS if bits >> tier & 1]
        self._keys.clear()
        self._told.clear()
        self._new.clear()
        self._kv.drain_events()

    def take(self, storing: Collection[OffloadKey]) -> Iterable[OffloadingEvent]:
        """The events since the last call. `storing`: keys whose blocks are under way."""
        told, self._queued = self._queued, []
        array = self._kv.drain_events().array
        lost, gone = False, []
        for i in range(len(array)):
            kind, tier = int(array["kind"][i]), int(array["tier"][i])
            if kind == _RESYNC:
                lost = True
                self.gaps += 1
            elif kind == _CLEARED:
                for name in [name for name, bits in self._told.items() if bits >> tier & 1]:
                    told += self._tell(name, tier, True)
                    gone.append(name)
            elif kind in (_STORED, _REMOVED) and tier > 0:
                words = array["hash"][i]
                name = int(words[0]).to_bytes(8, "big") + int(words[1]).to_bytes(8, "big")
                if name in self._keys:
                    told += self._tell(name, tier, kind == _REMOVED)
                    if kind == _REMOVED:
                        gone.append(name)
        compared = list(self._keys) if lost else [name for name in self._new if name in self._keys]
        self._new = []
        gone += self._compare(compared, told)
        for name in gone:
            if name in self._keys and not self._told.get(name) and self._keys[name][1] not in storing:
                del self._keys[name]
        return told

    # Brings what was told of these names in line with what the tiers have. Returns those that none has.
    def _compare(self, names: list[bytes], told: list[OffloadingEvent]) -> list[bytes]:
        if not names:
            return []
        gone = []
        for name, bits in zip(names, self._kv.presence([self._keys[name][0] for name in names])):
            now = int(bits) & ~1
            for tier in _TIERS:
                if (now ^ self._told.get(name, 0)) >> tier & 1:
                    told += self._tell(name, tier, not now >> tier & 1)
            if not now:
                gone.append(name)
        return gone

    def _tell(self, name: bytes, tier: int, removed: bool) -> list[OffloadingEvent]:
        bits = self._told.get(name, 0)
        if bool(bits >> tier & 1) != removed:
            return []  # was told already
        event = self._event(name, tier, removed)
        bits ^= 1 << tier
        if bits:
            self._told[name] = bits
        else:
            del self._told[name]
        return [event]

    def _event(self, name: bytes, tier: int, removed: bool) -> OffloadingEvent:
        return OffloadingEvent(
            keys=[self._keys[name][1]],
            medium=Medium.CPU if tier == 1 else Medium.STORAGE,
            removed=removed,
            locality=Locality.REMOTE if tier > 2 else Locality.LOCAL,
            ownership=_OWNERS.get(tier, "ashlar-peers"),
            removal_expected=True,
        )
