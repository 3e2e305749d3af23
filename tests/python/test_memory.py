"""The bytes of G1: memory of the caller's, and views of blocks; nothing is copied, nothing dangles."""

import ctypes
import gc
import mmap
import weakref

import ashlar
import numpy as np
import pytest
from kv_blocks import ONE, SHAPE, check, content, make, names_of, store

BLOCKS = 6
WHOLE = (BLOCKS, *ONE)
BYTES = int(np.prod(WHOLE)) * 4


class Array(np.ndarray):
    """An array that can be watched."""


def brought(memory, **options):
    return ashlar.KvBlockManager(**{**SHAPE, "g1_memory": memory, "g2_blocks": 16, **options})


def round_trip(kv, seed=0):
    names = names_of(kv, 4, seed).sequence
    store_each(kv, names).release()
    kv.drain()
    assert kv.reset("g1") == 4
    with kv.onboard(names) as guards:
        for i, name in enumerate(names):
            for layer in range(2):
                assert np.array_equal(kv.array(guards[i], layer=layer), content(name)[layer])


def store_each(kv, names):
    blocks = kv.g1.allocate(len(names))
    for id_, name in zip(blocks.block_ids, names):
        for layer in range(2):
            kv.array(layer=layer)[id_] = content(name)[layer]
    return kv.g1.register(blocks.stage(names))


def test_an_array_becomes_g1_without_a_copy():
    array = np.zeros(WHOLE, np.float32)
    kv = brought(array)
    assert kv.g1.block_count == BLOCKS
    round_trip(kv)
    assert np.shares_memory(kv.array(), array)
    array[3] = 7
    assert (kv.array(3) == 7).all()
    with brought(array, g1_blocks=2) as some:
        assert some.g1.block_count == 2
    with pytest.raises(ashlar.InvalidArgument):
        brought(array, g1_blocks=BLOCKS + 1)


def test_an_engine_s_order_is_strides():
    # As an engine lays it out: layers outermost, K before V, heads before tokens.
    engine = np.zeros((2, 2, BLOCKS, 2, 4, 8), np.float32)  # layer, outer, block, head, token, dim
    kv = brought(engine.transpose(2, 0, 1, 4, 3, 5))
    round_trip(kv)
    name = names_of(kv, 1).sequence[0]
    guard = kv.g1.match([name])[0]
    assert np.array_equal(engine[:, :, guard.block_id].transpose(0, 1, 3, 2, 4), content(name))


@pytest.mark.parametrize("memory", [
    lambda: bytearray(BYTES), lambda: mmap.mmap(-1, BYTES), lambda: np.zeros(BYTES, np.uint8),
    lambda: memoryview(bytearray(BYTES)), lambda: np.zeros((BLOCKS, BYTES // BLOCKS // 4), np.int32)])
def test_any_writable_memory_will_do(memory):
    round_trip(brought(memory(), g1_blocks=BLOCKS))
    round_trip(brought(memory(), g1_blocks=BLOCKS, g1_order="block_second_hnd"), seed=1)


def test_a_list_has_an_array_per_layer():
    layers = [np.zeros((BLOCKS, *ONE[1:]), np.float32) for _ in range(2)]
    kv = brought(layers)
    round_trip(kv)
    assert kv.array(0, layer=1).base is not None and np.shares_memory(kv.array(layer=1), layers[1])
    with pytest.raises(ashlar.InvalidArgument, match="name the layer"):
        kv.array(0)
    for wrong in (layers[:1], [layers[0], layers[1][:3]], [layers[0], layers[0]], []):
        with pytest.raises(ashlar.InvalidArgument):
            brought(wrong)


def test_dlpack_goes_in_and_out():
    class Tensor:  # as a framework's: no buffer, only DLPack
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    array = np.zeros(WHOLE, np.float32)
    kv = brought(Tensor(array))
    round_trip(kv)
    view = kv.tensor()
    assert view.__dlpack_device__() == (1, 0)
    assert np.shares_memory(np.from_dlpack(view), array)
    one = np.from_dlpack(kv.tensor(2, layer=1))
    array[2, 1] = 5
    assert one.shape == ONE[1:] and (one == 5).all()
    assert memoryview(kv.tensor(0)).nbytes == BYTES // BLOCKS


class OnDevice:
    """Says that its memory is on another device, as a GPU's tensor does."""

    def __init__(self, array, device, number):
        self.array, self.device = array, (device, number)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = pointer(capsule, b"dltensor")  # data, then device type and number
        (ctypes.c_int32 * 2).from_address(tensor + 8)[:] = self.device
        return capsule


def test_memory_of_a_device_that_is_not_there():
    array = np.zeros(WHOLE, np.float32)
    with pytest.raises(ashlar.Unsupported, match="cannot use"):
        brought(OnDevice(array, 10, 0))  # ROCm
    with pytest.raises((ashlar.Unavailable, ashlar.Unsupported, ashlar.InvalidArgument)):
        brought(OnDevice(array, 2, 1 << 20))  # CUDA


@pytest.mark.parametrize("dtype,numpy", [("bf16", np.uint16), ("f8_e4m3", np.uint8), ("f16", np.float16),
                                         ("f64", np.float64), ("u8", np.uint8), ("f8_e5m2", np.uint8)])
def test_every_dtype_has_a_view(dtype, numpy):
    kv = make(dtype=dtype)
    assert kv.array().dtype == numpy and kv.array().shape == (8, *ONE)
    assert kv.tensor().__dlpack_device__() == (1, 0)


def test_memory_that_cannot_be_used_is_refused():
    array = np.zeros(WHOLE, np.float32)
    frozen = array.copy()
    frozen.flags.writeable = False
    for wrong in (frozen, bytes(BYTES), np.zeros(0, np.float32), array[::-1], array[..., ::2], "text", 5,
                  np.broadcast_to(array[:1], WHOLE), np.zeros(BYTES - 1, np.uint8), object(),
                  np.zeros((BLOCKS, 3), np.float32), array[:, :, :, :, :, :4]):
        with pytest.raises((ashlar.InvalidArgument, TypeError)):
            brought(wrong, g1_blocks=BLOCKS)
    with pytest.raises(ashlar.InvalidArgument, match="g1_blocks"):
        brought(bytearray(BYTES))
    with pytest.raises(ashlar.InvalidArgument):
        brought(array, g1_device=0)
    with pytest.raises((ashlar.Unavailable, ashlar.Unsupported, ashlar.InvalidArgument)):
        make(g1_device=1 << 20)  # no machine has that many GPUs


def test_the_array_lives_as_long_as_the_manager():
    array = np.zeros(WHOLE, np.float32).view(Array)
    gone = weakref.ref(array)
    kv = brought(array)
    del array
    gc.collect()
    assert gone() is not None
    round_trip(kv)  # the caller's name is gone, its memory is not
    view = kv.array(1)
    kv.close()
    gc.collect()
    assert gone() is not None and view.shape == ONE
    del view, kv
    gc.collect()
    assert gone() is None
    with pytest.raises(ashlar.InvalidArgument):  # a refusal keeps nothing
        array = np.zeros(WHOLE, np.float32).view(Array)
        gone = weakref.ref(array)
        brought(array, g1_blocks=100)
    del array
    gc.collect()
    assert gone() is None


def test_views_are_read_only_once_blocks_are_named():
    kv = make()
    names = names_of(kv, 2).sequence
    block = kv.g1.allocate_block()
    view = kv.array(block)
    assert view.flags.writeable
    view[:] = content(names[0])
    complete = block.stage(names[0])
    assert not kv.array(complete).flags.writeable
    registered = kv.g1.register(complete)
    view = kv.array(registered)
    assert np.array_equal(view, content(names[0])) and not view.flags.writeable
    with pytest.raises(ValueError):
        view[:] = 0
    assert not kv.array(registered.block_id).flags.writeable
    with pytest.raises(TypeError):
        memoryview(kv.tensor(registered))[0] = 0
    for old in ({}, {"max_version": None}, {"max_version": (0, 8)}):
        with pytest.raises(BufferError, match="read-only"):
            kv.tensor(registered).__dlpack__(**old)
    shown = np.from_dlpack(kv.tensor(registered))
    assert np.array_equal(shown, view) and not shown.flags.writeable
    assert kv.tensor(registered).__dlpack_device__() == (1, 0)
    with pytest.raises(ashlar.UsedGuard):
        kv.array(block)


def test_a_view_keeps_its_guard_and_its_manager():
    kv = make(g1_blocks=2)
    names = names_of(kv, 2).sequence
    store(kv, names).release()
    view = kv.array(kv.g1.match(names[:1])[0])
    assert kv.status["g1"]["pool"].active == 1  # the guard lives in the view
    assert kv.reset("g1") == 1
    del kv
    gc.collect()
    assert np.array_equal(view, content(names[0]))
    copy = view[0][:, 1:]
    del view
    gc.collect()
    assert np.array_equal(copy, content(names[0])[0][:, 1:])


def test_blocks_that_are_not_there_are_errors():
    kv, other = make(), make()
    for wrong in (8, -1, 2**40, 2**70):
        with pytest.raises(ashlar.InvalidArgument, match="no block"):
            kv.array(wrong)
    for wrong in ("0", 1.5, [0], kv):
        with pytest.raises(TypeError):
            kv.array(wrong)
    with pytest.raises(ashlar.InvalidArgument, match="another manager"):
        kv.array(other.g1.allocate_block())
    with pytest.raises(ashlar.InvalidArgument, match="no layer"):
        kv.array(0, layer=2)
    guards = store(kv, names_of(kv, 3).sequence)
    check(kv, guards, names_of(kv, 3).sequence)
