"""Cases over vLLM's scheduler, connector and cache structures with our spec, without a model (stepper.py).

What the CPU platform does not start, and what is quicker so. Every case runs in a process of its own.
"""
import dataclasses
import functools
import os
import random
import signal
import time

import forked
from fixtures import QUIET
from lab import case, g3_file, objects, offloading
from stored_bytes import G3File

HEADS, HEAD = 2, 32


def unit(section):
    """Registers a case whose body runs in a forked process with a folder of its own."""
    def register(function):
        @functools.wraps(function)
        def run(lab):
            os.environ.update(QUIET)
            import stepper
            import torch
            import vllm.engine.arg_utils  # noqa: F401  imported once, for all that fork
            import vllm.v1.core.sched.scheduler  # noqa: F401
            del stepper, torch
            forked.run(function, Unit(lab, lab.fresh(function.__name__)))
        case(section)(run)
        return function
    return register


class Unit:
    """What a unit works with."""

    def __init__(self, lab, folder):
        self.lab, self.folder = lab, folder
        (folder / "volume").mkdir()

    def volumes(self):
        return [dict(name="shared", kind="directory", location=str(self.folder / "volume"))]

    def stepper(self, layers=None, blocks=300, layout="LBHNC", settings=(), connector=(), by_head=False,
                copies=1, change=None, **extra):
        """change: what is done to the configuration that vLLM made of the settings."""
        from stepper import Stepper, engine_config

        transfer = {**offloading(self.folder, **extra), **dict(connector)}
        config = engine_config(self.lab.model, transfer, **dict(settings))
        if change:
            change(config)
        return Stepper(config, layers or attention(2), blocks, layout, by_head, copies)


def named(specs):
    return {f"model.layers.{i}.self_attn.attn": spec for i, spec in enumerate(specs)}


def full(size=32, **changes):
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    return FullAttentionSpec(block_size=size, num_kv_heads=HEADS, head_size=HEAD, dtype=torch.float32,
                             **changes)


def windowed(size=32, window=100):
    import torch
    from vllm.v1.kv_cache_interface import SlidingWindowSpec
    return SlidingWindowSpec(block_size=size, num_kv_heads=HEADS, head_size=HEAD, dtype=torch.float32,
                             sliding_window=window)


def state(size, page):
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec
    return MambaSpec(block_size=size, shapes=((100,),), dtypes=(torch.float32,), mamba_cache_mode="align",
                     page_size_padded=page)


def latent(size=32):
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec
    return MLAAttentionSpec(block_size=size, num_kv_heads=1, head_size=64, dtype=torch.float32,
                            max_tp_shards=1)


def attention(layers, size=32):
    return named([full(size)] * layers)


def tokens(seed, count):
    rng = random.Random(f"unit {seed}")
    return [rng.randrange(3, 600) for _ in range(count)]


def whole(count, size):
    """Tokens of whole blocks that a hit of a prompt can cover."""
    return (count - 1) // size * size


def check_hits(engine, size, seed="hits", count=3500):
    """Cold, local, from our tiers; a longer prompt, one that leaves the prefix; several at once."""
    ids = tokens(seed, count)
    assert engine.run(ids) == 0
    assert engine.run(ids) == whole(count, size)
    assert engine.reset()
    longer = ids + tokens("longer", 70)
    assert engine.run(longer) == whole(count, size)
    assert engine.reset()
    middle = count // 2
    found = engine.run(ids[:middle] + tokens("leaves", 300))
    # Of a window vLLM stores what a later hit at the end can need, so in the middle there may be less.
    windows = [getattr(group.kv_cache_spec, "sliding_window", None) for group in engine.groups]
    whole_groups = not any(windows)
    assert found == middle // size * size if whole_groups else found <= middle, found
    assert engine.reset()
    names = [engine.add(ids[:count - 40 * i] + tokens(f"at once {i}", 50)) for i in range(3)]
    engine.finish()
    assert all(engine.cached[name] > 0 for name in names[:3 if whole_groups else 1])
    read = sum(worker.seen["read"] for worker in engine.workers)
    assert read > 3 * count, f"only {read} tokens were read"


# ---- 0: that these cases can fail


@unit("0")
def a_wrong_byte_would_show(lab):
    engine = lab.stepper()
    ids = tokens("wrong", 330)
    engine.run(ids)
    for page in engine.workers[0].pages.values():
        page[:, 100] ^= 1
    try:
        engine.run(ids)
    except AssertionError as found:
        assert "is wrong" in str(found)
    else:
        raise AssertionError("a wrong byte was not seen")


# ---- 1: another configuration


def check_other(lab, change, **extra):
    """What one configuration stored, another must not find; the first still does."""
    ids = tokens("other", 700)
    first = lab.stepper(volumes=lab.volumes(), **extra)
    assert first.run(ids) == 0
    first.close()
    change_back = change(lab)
    second, size = change_back()
    assert second.run(ids) == 0, "a block of another configuration was used"
    assert second.reset()
    assert second.run(ids) == whole(700, size)
    second.close()
    again = lab.stepper(volumes=lab.volumes(), **extra)
    assert again.run(ids) == whole(700, 32), "the other configuration destroyed the blocks of the first"
    again.close()


@unit("1")
def restarted_with_another_layout_name(lab):
    check_other(lab, lambda lab: lambda: (lab.stepper(volumes=lab.volumes(), layout="LBNHC"), 32))


@unit("1")
def restarted_with_another_version_of_vllm(lab):
    def change(lab):
        import ashlar._vllm_fingerprint as spec
        kept, spec._vllm_version = spec._vllm_version, "0.31.9"

        def make():
            engine = lab.stepper(volumes=lab.volumes())
            spec._vllm_version = kept
            return engine, 32
        return make
    check_other(lab, change)


@unit("1")
def restarted_with_other_heads(lab):
    """The same bytes per block, other heads of the model's layers."""
    def change(lab):
        layers = named([dataclasses.replace(full(), num_kv_heads=2 * HEADS, head_size=HEAD // 2)] * 2)
        return lambda: (lab.stepper(layers, volumes=lab.volumes()), 32)
    check_other(lab, change)


@unit("1")
def other_weights_under_one_name(lab):
    """A model whose weights changed in place is another model."""
    ids = tokens("weights", 700)
    first = lab.stepper(volumes=lab.volumes(), model="name")
    first.run(ids)
    first.close()
    import shutil
    changed = lab.folder / "model"
    shutil.copytree(lab.lab.model, changed)
    [weights] = changed.glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    lab.lab.model = changed
    second = lab.stepper(volumes=lab.volumes(), model="name")
    assert second.run(ids) == 0, "blocks of other weights were used"
    second.close()


# ---- 2: a file that does not fit, killed while it stores


@unit("2")
def truncated_g3_is_refused(lab):
    """The engine does not start over half a file, nor over one of another size: the error names the file,
    which stays as it is. Without it the engine starts."""
    ids = tokens("truncated", 700)
    engine = lab.stepper()
    engine.run(ids)
    engine.close()
    path = g3_file(lab.folder)
    G3File(path).truncate()
    kept = path.read_bytes()
    for changes in ({}, dict(g3_bytes=64 << 20)):
        try:
            lab.stepper(**changes)
        except Exception as refused:
            assert str(path) in str(refused), refused
        else:
            raise AssertionError("an engine started over half a file")
        assert path.read_bytes() == kept, "a refused file was changed"
    path.unlink()
    engine = lab.stepper()
    assert engine.run(ids) == 0
    engine.close()


def store_until_killed(lab, folder, round_number, pipe):
    """Checks what earlier rounds left, then stores prompt after prompt, telling each."""
    lab.folder = folder
    engine = lab.stepper(volumes=lab.volumes(), g2_bytes=8 << 20)
    found = 0
    for number in range(max(0, round_number - 3), round_number):
        found += engine.run(tokens(f"killed {number} 0", 500))
    os.write(pipe, f"{found}\n".encode())
    for number in range(10000):
        engine.run(tokens(f"killed {round_number} {number}", 500))
        os.write(pipe, b"s\n")


@unit("2")
def storing_process_killed_again_and_again(lab):
    """kill -9 at a random moment of storing, then a restart, over and over: scheduler and worker in one
    process, without a model. All that is found must be right."""
    rng, found = random.Random(11), 0
    for number in range(lab.lab.kills):
        reading, writing = os.pipe()
        child = forked.start(store_until_killed, lab, lab.folder, number, writing)
        os.close(writing)
        with os.fdopen(reading) as lines:
            line = lines.readline()
            assert line, f"round {number}: the process ended with {forked.end(child)} before it was killed"
            found += int(line)
            for _ in range(1 + rng.randrange(3)):
                assert lines.readline() == "s\n"
            time.sleep(rng.random() * 0.05)  # any moment will do; nothing is awaited
            os.kill(child, signal.SIGKILL)
            assert forked.end(child) == -signal.SIGKILL
    assert found > 0, "no block of a killed process was ever found"


# ---- 3: requests that meet


@unit("3")
def preemption_fences_stores(lab):
    """Blocks of preempted requests are given to others while they are being stored."""
    engine = lab.stepper(blocks=60, settings=dict(max_model_len=1024))
    for turn in range(20):
        for i in range(5):
            engine.add(tokens(f"fenced {turn} {i}", 500), 150)
        engine.finish()
        if engine.seen["preempted"] >= 4:
            break
    assert engine.seen["preempted"] >= 4, engine.seen
    assert engine.reset()
    assert engine.run(tokens("fenced 0 0", 500)) > 0


@unit("3")
def g2_smaller_than_a_prompt(lab):
    """Requests whose blocks do not fit into G2 end, with what fits or with none."""
    engine = lab.stepper(g2_bytes=1 << 20)  # 32 blocks
    ids = tokens("large", 3500)
    assert engine.run(ids) == 0
    for _ in range(3):
        assert engine.reset()
        engine.run(ids)
    names = [engine.add(tokens(f"large {i}", 1800)) for i in range(4)]
    engine.finish()
    assert len(names) == 4


@unit("3")
def blocks_come_up_from_g3_through_a_small_g2(lab):
    engine = lab.stepper(g2_bytes=4 << 20)  # 128 blocks
    prompts = [tokens(f"below {i}", 1700) for i in range(6)]  # 53 blocks each
    for ids in prompts:
        engine.run(ids)
    found = []
    for ids in prompts * 2:
        assert engine.reset()
        found.append(engine.run(ids))
    assert sum(found) > 6 * 1600, found


# ---- 4: what separates requests beside tokens


def matched(engine, ids, **more):
    """How many tokens our tiers offer to a request; it is not run."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    engine.count += 1
    request = Request(f"asked {engine.count}", ids, SamplingParams(max_tokens=4), None,
                      block_hasher=engine.hasher, **more)
    connector = engine.scheduler.connector
    connector.on_new_request(request)
    for _ in range(2000):
        offered, _ = connector.get_num_new_matched_tokens(request, 0)
        if offered is not None:
            connector.request_finished_all_groups(request, ([],))
            return offered
        engine.step()  # what is on its way comes with the steps
    raise AssertionError("the answer is always: ask again")


def check_separate(engine, ids, first, others):
    """What a request of `first` stored, none of `others` is offered."""
    engine.run(ids, **first)
    assert engine.reset()
    assert matched(engine, ids, **first) >= whole(len(ids), 32)
    for other in others:
        assert matched(engine, ids, **other) == 0, f"{other} is offered blocks of {first}"


@unit("4")
def loras_are_separate(lab):
    from vllm.lora.request import LoRARequest

    def one(name, number, path):
        return dict(lora_request=LoRARequest(name, number, path))
    engine = lab.stepper()
    check_separate(engine, tokens("lora", 330), one("a", 1, "/a"),
                   [one("b", 2, "/b"), {}, one("a", 1, "/another/a")])
    check_separate(engine, tokens("plain", 330), {}, [one("a", 1, "/a")])


@unit("4")
def salts_are_separate_in_keys(lab):
    engine = lab.stepper()
    check_separate(engine, tokens("salt", 330), dict(cache_salt="one"), [dict(cache_salt="two"), {}])
    check_separate(engine, tokens("none", 330), {}, [dict(cache_salt="one")])


@unit("4")
def multimodal_placeholders_are_separate(lab):
    """Equal placeholder tokens of two images, and of one image at another place."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    def image(name, offset):
        return dict(mm_features=[MultiModalFeatureSpec(
            data=None, modality="image", identifier=name,
            mm_position=PlaceholderRange(offset=offset, length=64))])
    engine = lab.stepper()
    ids = [7] * 330
    # The requests run as text does: only what names their blocks differs.
    store_keys_of(engine, ids, image("cat", 32))
    assert matched(engine, ids, **image("cat", 32)) > 64
    for other in (image("dog", 32), image("cat", 40), {}):
        assert matched(engine, ids, **other) <= 32, "another image's block is offered"


@unit("4")
def prompt_embeddings_are_separate(lab):
    import torch

    def embedded(seed):
        generator = torch.Generator().manual_seed(seed)
        return dict(prompt_embeds=torch.rand((330, 16), generator=generator))
    engine = lab.stepper()
    store_keys_of(engine, None, embedded(1))
    assert matched(engine, None, **embedded(1)) >= 320
    assert matched(engine, None, **embedded(2)) == 0
    assert matched(engine, [0] * 330) == 0


def store_keys_of(engine, ids, more):
    """Stores blocks under the keys of a request that this scheduler cannot run."""
    from vllm import SamplingParams
    from vllm.v1.kv_offload.base import GPULoadStoreSpec, ReqContext, make_offload_key
    from vllm.v1.request import Request

    request = Request("keys", ids, SamplingParams(max_tokens=4), None, block_hasher=engine.hasher, **more)
    keys = [make_offload_key(each, 0) for each in request.block_hashes]
    assert len(keys) == 10
    manager = engine.scheduler.connector.scheduler.manager
    worker = engine.workers[0].connector.connector_worker.worker
    context = ReqContext(req_id="keys")
    manager.on_new_request(context)
    stored = manager.prepare_store(keys, context)
    assert list(stored.keys_to_store) == keys
    worker.submit_store(1 << 30, GPULoadStoreSpec(list(range(1, 11)), [10], [0]), stored.store_spec)
    worker.wait({1 << 30})
    assert [each.job_id for each in worker.get_finished()] == [1 << 30]
    manager.complete_store(keys, context)
    manager.on_request_finished(context)


@unit("4")
def decode_blocks_are_offloaded_or_not(lab):
    """`offload_prompt_only` both ways: blocks of generated tokens are found, or only those of the prompt."""
    for only, expected in ((False, 13), (True, 10)):
        engine = lab.stepper(offload_prompt_only=only, g3_path=None, g3_bytes=None)
        name = engine.add(tokens("turn", 330), 100)
        engine.finish()
        turn = list(engine.requests[name].all_token_ids)
        assert engine.reset()
        assert engine.run(turn + tokens("next", 9)) == expected * 32, f"offload_prompt_only={only}"
        engine.close()


# ---- 5: groups


@unit("5")
def full_attention(lab):
    check_hits(lab.stepper(), 32)


@unit("5")
def sliding_window_beside_full_attention(lab):
    engine = lab.stepper(named([windowed(), full()] * 2), blocks=600)
    assert len(engine.groups) == 2
    check_hits(engine, 32)


@unit("5")
def sliding_window_under_preemption(lab):
    engine = lab.stepper(named([windowed(window=70), full()] * 2), blocks=80,
                         settings=dict(max_num_batched_tokens=256, max_model_len=1024))
    for turn in range(30):
        for i in range(6):
            engine.add(tokens(f"windows {turn % 3} {i}", 400), 120)
        engine.finish()
        if engine.seen["preempted"] > 5 and turn > 4:
            break
    assert engine.seen["preempted"] > 5, engine.seen


@unit("5")
def sliding_window_from_a_volume(lab):
    """vLLM asks for a window from its end, and most of a window is stored nowhere: another engine finds what
    there is, whole prompts and longer ones."""
    layers = named([windowed(), full()] * 2)
    tiers = dict(volumes=lab.volumes(), g3_path=None, g3_bytes=None)
    ids = tokens("window below", 3500)
    first = lab.stepper(layers, blocks=600, **tiers)
    assert first.run(ids) == 0
    first.close()
    second = lab.stepper(layers, blocks=600, **tiers)
    assert second.run(ids[:1700] + tokens("leaves", 600)) <= 1700
    assert second.run(ids + tokens("longer", 300)) == whole(3500, 32)
    assert second.reset()
    assert second.run(ids) == whole(3500, 32)
    second.close()


@unit("5")
def states_beside_full_attention(lab):
    """Blocks of 784 tokens and three groups of states, as vLLM aligns a hybrid model."""
    page = full(784).page_size_bytes
    engine = lab.stepper(named([state(784, page)] * 3 + [full(784)]), blocks=100,
                         settings=dict(mamba_cache_mode="align"))
    assert len(engine.groups) == 4
    ids = tokens("states", 3500)
    assert engine.run(ids) == 0
    assert engine.reset()
    assert engine.run(ids + tokens("more", 90)) == whole(3500, 784)
    assert engine.workers[0].seen["states"] > 0


@unit("5")
def states_survive_a_restart(lab):
    page = full(1056).page_size_bytes
    layers = named([state(1056, page)] * 3 + [full(1056)])
    settings = dict(mamba_cache_mode="align")
    ids = tokens("states", 3500)
    engine = lab.stepper(layers, blocks=60, settings=settings)
    engine.run(ids)
    engine.close()
    again = lab.stepper(layers, blocks=60, settings=settings)
    assert again.run(ids) == whole(3500, 1056)
    again.close()


def check_block_size(lab, size):
    engine = lab.stepper(attention(2, size), blocks=40, g2_bytes=128 << 20, g3_bytes=256 << 20)
    ids = tokens("size", 3500)
    assert engine.run(ids) == 0
    assert engine.reset()
    assert engine.run(ids) == whole(3500, size)
    engine.close()
    again = lab.stepper(attention(2, size), blocks=40, g2_bytes=128 << 20, g3_bytes=256 << 20)
    assert again.run(ids) == whole(3500, size)
    again.close()


@unit("5")
def block_of_784_tokens(lab):
    check_block_size(lab, 784)


@unit("5")
def block_of_1056_tokens(lab):
    check_block_size(lab, 1056)


@unit("5")
def block_of_1600_tokens(lab):
    check_block_size(lab, 1600)


@unit("5")
def chunks_of_several_blocks(lab):
    """`blocks_per_chunk`: vLLM stores and finds four blocks as one."""
    engine = lab.stepper(blocks_per_chunk=4)
    ids = tokens("chunks", 1000)
    assert engine.run(ids) == 0
    assert engine.reset()
    assert engine.run(ids + tokens("more", 40)) == whole(1000, 128)


@unit("5")
def latent_attention(lab):
    check_hits(lab.stepper(named([latent()] * 2)), 32)


# ---- 6: resets, loads that fail


@unit("6")
def reset_while_stores_and_loads_run(lab):
    """A reset of the connector in the middle of everything: nothing of before is found, nothing hangs."""
    engine = lab.stepper(volumes=lab.volumes())
    ids = tokens("reset", 1500)
    for turn in range(12):
        engine.add(ids + tokens(f"turn {turn}", 40), 20)
        for _ in range(turn):
            engine.step()
        engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        engine.finish()
    assert engine.reset(connector=True)
    assert engine.run(ids) == 0, "a block from before the reset is found"


@unit("6")
def blocks_of_new_weights_end_with_the_process(lab):
    """Weights are updated in place and the connector is reset; a restart has the weights of the disk again.
    It may find blocks from before the reset and none from behind it."""
    before, behind = tokens("before", 700), tokens("behind", 700)
    engine = lab.stepper(volumes=lab.volumes())
    engine.run(before)
    assert engine.reset(connector=True)
    assert engine.run(before) == engine.run(behind) == 0
    assert engine.reset()
    assert engine.run(behind) == whole(700, 32), "the engine does not find its own blocks after a reset"
    engine.close()
    again = lab.stepper(volumes=lab.volumes())
    assert again.run(behind) == 0, "a block of weights that are gone was used"
    again.close()


@unit("6")
def file_damaged_while_the_engine_runs(lab):
    """G3 is damaged below a running engine: what it then reads is a miss, and computed again."""
    engine = lab.stepper(g2_bytes=2 << 20)  # 64 blocks: others push it out
    ids = tokens("below", 1000)
    engine.run(ids)
    for i in range(4):
        engine.run(tokens(f"pushes {i}", 1500))
    deadline = time.monotonic() + 300
    while True:
        file = G3File(g3_file(lab.folder))
        if len(file.filled) >= 31:
            break
        assert time.monotonic() < deadline, "G3 stays empty"
        engine.step()
    file.flip(file.units())
    assert engine.reset()
    engine.run(ids)
    engine.run(tokens("after", 1000))


@unit("6")
def volume_vanishes_while_the_engine_runs(lab):
    engine = lab.stepper(volumes=lab.volumes(), g2_bytes=2 << 20, g3_path=None, g3_bytes=None)
    ids = tokens("gone", 1000)
    engine.run(ids)
    for i in range(4):
        engine.run(tokens(f"pushes {i}", 1500))
    for path in objects(lab.folder / "volume"):
        path.unlink(missing_ok=True)
    (lab.folder / "volume").rename(lab.folder / "elsewhere")
    for i in range(3):
        assert engine.reset()
        engine.run(ids)
