"""Memory that the scheduler of an engine and its workers share: the slots of G2.

The file has a head, in which the processes meet and report, and the slots. It lies in /dev/shm and loses its
name when all have opened it, so that nothing is left behind when they are killed. Its memory is reserved when
it is made: a machine without room says so at the start, not by a signal in the middle of a copy.

Head: magic, version, ranks, slots, bytes of a slot, the fingerprint of what lies in the slots; then the
greetings of the manager and of each rank; then for each rank a ring of the jobs that it has ended, and for
each of its slots a seal: the mark of the job that wrote it (HostStore), and a checksum of what that wrote.
"""

from __future__ import annotations

import fcntl
import glob
import mmap
import os
import struct
import tempfile
import time

import numpy as np

_MAGIC = b"ASHLARG2"
_VERSION = 1
# Magic, version, ranks, slots, bytes of a slot, fingerprint, process of the maker.
_HEAD = struct.Struct("<8sIIQQ32sQ")
_GREETINGS = 128
_MAX_RANKS = 1024
RING = 32768  # jobs that may be under way at once, twice
_FAILED = np.uint64(1 << 63)
_START = 900.0  # seconds: no engine takes longer from its first process to its last
_FOLDER = "/dev/shm"
_PREFIX = "ashlar-g2-"


def _align(size: int, to: int = 4096) -> int:
    return -(-size // to) * to


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sweep(folder: str) -> None:
    """Removes files whose maker was killed before they lost their names, some minutes ago.

    Containers may share the folder and not see each other's processes: what is young may be of a living one.
    """
    for path in glob.glob(os.path.join(folder, _PREFIX + "*")):
        try:
            with open(path, "rb") as file:
                head = file.read(_HEAD.size)
            if len(head) < _HEAD.size or head[:8] != _MAGIC or _alive(_HEAD.unpack(head)[6]):
                continue
            if time.time() - os.path.getmtime(path) > _START:
                os.unlink(path)
        except OSError:
            continue


class HostRegion:
    """The slots of G2, mapped into this process.

    Opened by the manager (rank None) and by each rank, in any order. `slots` x `slot_bytes` bytes as `array`,
    and what each rank has ended.
    """

    def __init__(self, name: str, *, ranks: int, slots: int, slot_bytes: int, fingerprint: bytes,
                 rank: int | None, folder: str | None = None):
        if not 1 <= ranks <= _MAX_RANKS:
            raise ValueError(f"{ranks} ranks; a region is shared by 1 to {_MAX_RANKS}")
        if slots < 1 or slot_bytes < 1:
            raise ValueError(f"{slots} slots of {slot_bytes} bytes; a region needs at least one byte")
        if rank is not None and not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks} ranks")
        if folder is None:
            folder = _FOLDER if os.path.isdir(_FOLDER) else tempfile.gettempdir()
        self.ranks = ranks
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._fingerprint = fingerprint.ljust(32, b"\0")[:32]
        self._path = os.path.join(folder, _PREFIX + name)
        self._rings = _align(_GREETINGS + 8 * (ranks + 1))
        self._seals_at = self._rings + _align(8 * RING * ranks)
        self._data = self._seals_at + _align(16 * slots * ranks)
        self._size = self._data + slots * slot_bytes
        _sweep(folder)
        self._open(rank)

    def _open(self, rank: int | None) -> None:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have removed the name between our two calls.
            try:
                if os.stat(self._path).st_ino == os.fstat(descriptor).st_ino:
                    break
            except FileNotFoundError:
                pass
            os.close(descriptor)
        try:
            self._make_or_check(descriptor)
            self._map = mmap.mmap(descriptor, self._size)
        finally:
            self._greet_and_close(descriptor, rank)

    def _make_or_check(self, descriptor: int) -> None:
        wanted = (_MAGIC, _VERSION, self.ranks, self.slots, self.slot_bytes, self._fingerprint)
        if os.fstat(descriptor).st_size == 0:
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            except OSError as error:
                os.unlink(self._path)
                raise MemoryError(
                    f"{os.path.dirname(self._path)} has no room for the {self._size} bytes of G2: "
                    f"{error.strerror}; lower g2_bytes, or give it more memory (docker: --shm-size, "
                    "--ipc=host)"
                ) from None
            os.pwrite(descriptor, _HEAD.pack(*wanted, os.getpid()), 0)
            return
        found = _HEAD.unpack(os.pread(descriptor, _HEAD.size, 0))
        if found[:6] != wanted:
            raise ValueError(
                f"{self._path} was made for {found[2]} ranks, {found[3]} slots of {found[4]} bytes, this "
                f"process wants {self.ranks}, {self.slots} of {self.slot_bytes}, or the blocks differ: "
                f"manager and workers of an engine must have one configuration")

    def _greet_and_close(self, descriptor: int, rank: int | None) -> None:
        try:
            if hasattr(self, "_map"):
                words = np.frombuffer(self._map, np.uint64, self.ranks + 1, _GREETINGS)
                place = 0 if rank is None else rank + 1
                if words[place] and int(words[place]) != os.getpid() and _alive(int(words[place])):
                    del self._map
                    raise ValueError(f"{self._path} has a manager or rank {rank} already, process "
                                     f"{int(words[place])}: give each engine an engine_id of its own")
                words[place] = os.getpid()
                if words.all():
                    os.unlink(self._path)
                self._greetings = words
                self._done = np.frombuffer(self._map, np.uint64, RING * self.ranks,
                                           self._rings).reshape(self.ranks, RING)
                self._seals = np.frombuffer(self._map, np.uint64, 2 * self.slots * self.ranks,
                                            self._seals_at).reshape(self.ranks, self.slots, 2)
                self.array = np.frombuffer(self._map, np.uint8, self.slots * self.slot_bytes,
                                           self._data).reshape(self.slots, self.slot_bytes)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # the mapping keeps the file open, and with it a lock
            os.close(descriptor)

    @property
    def complete(self) -> bool:
        """Whether the manager and every rank have opened it."""
        return bool(self._greetings.all())

    def missing(self) -> list[int]:
        """The ranks that have not."""
        return [rank for rank in range(self.ranks) if not self._greetings[rank + 1]]

    def ended(self, rank: int, job: int, failed: bool = False) -> None:
        """A rank reports a job. Its bytes were written before."""
        self._done[rank, job % RING] = np.uint64(job) | _FAILED if failed else np.uint64(job)

    def has_ended(self, job: int, ranks: int | None = None) -> bool:
        """Whether every rank has reported it, or each of the first `ranks`."""
        return bool((self._done[:ranks, job % RING] & ~_FAILED == job).all())

    def has_failed(self, job: int) -> bool:
        """Whether some rank has reported that it failed."""
        return bool((self._done[:, job % RING] == np.uint64(job) | _FAILED).any())

    def seal(self, rank: int, slots: list[int], marks: list[int], checksums: list[int]) -> None:
        """A rank has written its part of these slots."""
        self._seals[rank, slots, 0] = 0
        self._seals[rank, slots, 1] = checksums
        self._seals[rank, slots, 0] = marks

    def seals(self, rank: int, slots: list[int]) -> np.ndarray:
        """The (mark, checksum) of each slot as this rank left it."""
        return self._seals[rank, slots]

    def close(self) -> None:
        """Forgets the mapping; it ends when the last array that shows it is gone."""
        if not hasattr(self, "_map"):
            return
        if not self.complete:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass
        del self.array, self._done, self._seals, self._greetings
        try:
            self._map.close()
        except BufferError:
            pass  # G2 still shows it
        del self._map
