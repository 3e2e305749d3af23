"""For programs of test_interrupts.py: calls that Ctrl-C must end, and what keeps them waiting."""

import ctypes
import fcntl
import mmap
import os
import platform
import signal
import struct
import sys
import threading
import time

import ashlar
import numpy as np

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let background jobs ignore it

BLOCK_SIZE, BLOCKS = 16, 8
SHAPE = {"layers": 2, "heads": 2, "head_dim": 64, "dtype": "f32", "block_size": BLOCK_SIZE}
BLOCK_BYTES = 2 * 2 * BLOCK_SIZE * 2 * 64 * 4


def interrupt(call):
    """Sends SIGINT once call() has given the GIL up; it must raise.

    The call must be unable to return meanwhile. Other threads run only where this one gives the GIL up.
    """
    main = threading.get_ident()

    def is_inside():
        frame = sys._current_frames()[main]
        while frame is not None and frame.f_code is not call.__code__:
            frame = frame.f_back
        return frame is not None

    def send():
        while not is_inside():
            time.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)

    before = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        call()
    except KeyboardInterrupt:
        pass
    else:
        sys.exit("the call returned")
    finally:
        sys.setswitchinterval(before)
        sender.join()


class StuckMemory:
    """Memory whose first touch does not return while it is stuck: a userfault that nobody answers."""

    API, REGISTER, MISSING, USER_MODE_ONLY = 0xC018AA3F, 0xC020AA00, 1, 1
    CALLS = {"x86_64": 323, "aarch64": 282}

    def __init__(self, size):
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.map = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.file = None

    @classmethod
    def open(cls):
        """A descriptor for userfaults; None where the kernel grants none."""
        call = cls.CALLS.get(platform.machine())
        if call is None:
            return None
        file = ctypes.CDLL(None).syscall(call, os.O_CLOEXEC | cls.USER_MODE_ONLY)
        return None if file < 0 else file

    def stick(self):
        """What was in it is gone, and every page is to be touched anew."""
        self.file = self.open()
        fcntl.ioctl(self.file, self.API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
        self.map.madvise(mmap.MADV_DONTNEED)
        address = np.frombuffer(self.map, np.uint8).ctypes.data
        fcntl.ioctl(self.file, self.REGISTER,
                    bytearray(struct.pack("QQQQ", address, self.size, self.MISSING, 0)))

    def free(self):
        """Touches go on."""
        os.close(self.file)
        self.file = None


def memory_for(blocks):
    return StuckMemory(blocks * BLOCK_BYTES)


def names_of(kv, blocks):
    return kv.hasher().hash_blocks(np.arange(BLOCK_SIZE * blocks, dtype=np.uint32), BLOCK_SIZE).sequence


def store(kv, names):
    kv.g1.register(kv.g1.allocate(len(names)).stage(names)).release()


def below(**options):
    """A manager, and names of blocks that only its G2 has."""
    kv = ashlar.KvBlockManager(**SHAPE, g1_blocks=BLOCKS, g2_blocks=BLOCKS, **options)
    names = names_of(kv, 4)
    store(kv, names)
    kv.drain()
    kv.reset("g1")
    return kv, names


class BusyOnboarding:
    """Keeps the threads that onboard in callbacks: the one for all calls, and the one that calls whose blocks
    are in memory have while the other is busy."""

    def __init__(self, kv, names):
        self.go_on, self.handles = threading.Event(), []
        for _ in range(2):
            begun = threading.Event()
            self.handles.append(kv.onboard_async(names[:1], on_done=lambda begun=begun: self.wait(begun)))
            begun.wait()

    def wait(self, begun):
        begun.set()
        self.go_on.wait()

    def end(self):
        self.go_on.set()
        for handle in self.handles:
            handle.wait().release()
