"""Cases over what is on disk: another engine, another configuration, damage, a full disk, a killed process.

Each starts an engine over a copy of one stock of blocks (`Lab.stock`).
"""
import shutil
import subprocess

from lab import (BLOCK, STOCK, EngineFailed, Skipped, case, g3_file, objects, offloading, prompt, stocked,
                 wait_for)
from stored_bytes import G3File, filled_blocks, flip_object, swap_objects, truncate_object


def ask_for_stock(lab, engine):
    """Asks for every prompt of the stock; the answers must be right. Returns the cached blocks of each."""
    return {seed: lab.same(engine, prompt(seed, blocks)) // BLOCK for seed, blocks in STOCK.items()}


def check_miss(lab, connector, **settings):
    """An engine that may not use the stock: right answers, nothing cached, nothing loaded."""
    with lab.engine(connector, **settings) as engine:
        found = ask_for_stock(lab, engine)
        assert not any(found.values()), f"blocks of another configuration were used: {found}"
        assert engine.metric("vllm:kv_offload_load_bytes") == 0
        # It is an engine like any other: what it stores itself it finds.
        ids = prompt("after a miss", 10)
        lab.same(engine, ids)
        lab.until_cached(engine, ids, 10)


# ---- 1: another process


@case("1")
def engine_restarted_serves_from_g3(lab):
    folder = lab.copy_of_stock("g3", without=["volume"])
    with lab.engine(stocked(folder, volume=False)) as engine:
        assert ask_for_stock(lab, engine) == STOCK
        from_disk = engine.metric("vllm:prompt_tokens_cached_by_source", source="disk")
        assert from_disk == BLOCK * sum(STOCK.values()), from_disk


@case("1")
def second_engine_serves_from_the_volume(lab):
    """The first engine still runs; the second has tiers of its own and shares only the folder."""
    first, ids = lab.tiers(), prompt("from another engine", 13)
    lab.same(first, ids)
    lab.until_cached(first, ids, 13)
    extra = lab.made["tiers connector"]["kv_connector_extra_config"]
    second = lab.start(offloading(lab.fresh("second"), volumes=extra["volumes"]))
    try:
        second.wait()
        # The first engine's copies to the volume run behind its answers.
        cached = wait_for("the second engine finds all blocks", lambda: cached_at(lab, second, ids, 13), 300)
        assert cached == 13 * BLOCK
    finally:
        lab.end(second)


def cached_at(lab, engine, ids, blocks):
    assert engine.reset(connector=False)
    cached = lab.same(engine, ids)
    return cached if cached == blocks * BLOCK else 0


@case("1")
def restarted_with_another_dtype(lab):
    folder = lab.copy_of_stock("dtype")
    with lab.engine(stocked(folder), dtype="bfloat16") as engine:
        for seed, blocks in STOCK.items():
            assert engine.generate(prompt(seed, blocks))["cached"] == 0, "blocks of float32 in bfloat16"
        assert engine.metric("vllm:kv_offload_load_bytes") == 0


@case("1")
def restarted_with_another_block_size(lab):
    check_miss(lab, stocked(lab.copy_of_stock("size")), block_size=2 * BLOCK)


@case("1")
def restarted_with_another_model_name(lab):
    check_miss(lab, stocked(lab.copy_of_stock("name"), model="other"))


@case("1")
def restarted_with_another_tensor_parallel_size(lab):
    check_miss(lab, stocked(lab.copy_of_stock("tp")), tensor_parallel_size=2)


@case("1")
def restarted_with_the_same_names_of_another_layer_count(lab):
    """The same `model` option for a model of another shape."""
    def make():
        from fixtures import write_model
        write_model(lab.folder / "deeper", initializer_range=0.1, num_hidden_layers=3)
        return lab.folder / "deeper"
    with lab.engine(stocked(lab.copy_of_stock("deeper")), model=lab.once("deeper", make)) as engine:
        for seed, blocks in STOCK.items():
            assert engine.generate(prompt(seed, blocks))["cached"] == 0, "blocks of a model with fewer layers"


# ---- 2: damage


def check_damaged_g3(lab, name, damage):
    """All blocks of the file are damaged: no hit, right answers."""
    folder = lab.copy_of_stock(name, without=["volume"])
    damage(G3File(g3_file(folder)))
    with lab.engine(stocked(folder, volume=False)) as engine:
        found = ask_for_stock(lab, engine)
        assert not any(found.values()), f"damaged blocks were used: {found}"
        for seed, blocks in STOCK.items():
            lab.until_cached(engine, prompt(seed, blocks), blocks)


@case("2")
def corrupt_blocks_in_g3(lab):
    check_damaged_g3(lab, "corrupt", lambda file: file.flip(file.units()))


@case("2")
def swapped_blocks_in_g3(lab):
    """Every header has another request's bytes below it."""
    check_damaged_g3(lab, "swapped", G3File.rotate)


@case("2")
def one_corrupt_block_in_g3_ends_its_prefix(lab):
    folder = lab.copy_of_stock("one", without=["volume"])
    file = G3File(g3_file(folder))
    file.flip(file.units()[5:6])
    with lab.engine(stocked(folder, volume=False)) as engine:
        found = ask_for_stock(lab, engine)
        less = [seed for seed in STOCK if found[seed] < STOCK[seed]]
        assert len(less) == 1, f"{found} of {STOCK}"


@case("2")
def damaged_objects_on_a_volume(lab):
    """A header and a body with one byte inverted, half an object, an empty one: in turn, over all objects."""
    folder = lab.copy_of_stock("objects", without=["g3"])
    for number, path in enumerate(objects(folder / "volume")):
        kinds = (lambda: flip_object(path, 20), lambda: flip_object(path, path.stat().st_size // 2),
                 lambda: truncate_object(path), lambda: path.write_bytes(b""))
        kinds[number % 4]()
    with lab.engine(stocked(folder, g3_path=None, g3_bytes=None)) as engine:
        found = ask_for_stock(lab, engine)
        assert not any(found.values()), f"damaged objects were used: {found}"


@case("2")
def anothers_object_under_our_name(lab):
    """Objects exchange names: each is sound and belongs to another block."""
    folder = lab.copy_of_stock("renamed", without=["g3"])
    found = objects(folder / "volume")
    assert len(found) >= sum(STOCK.values()), f"{len(found)} objects"
    for one, other in zip(found[::2], found[1::2]):
        swap_objects(one, other)
    if len(found) % 2:
        found[-1].unlink()
    with lab.engine(stocked(folder, g3_path=None, g3_bytes=None)) as engine:
        cached = ask_for_stock(lab, engine)
        assert not any(cached.values()), f"another block's object was used: {cached}"


@case("2")
def disk_full(lab):
    """G3 and the volume on a file system of 1 MiB: stores fail there, answers and G2 do not."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        raise Skipped("no user namespaces here to mount a small file system in")
    folder = lab.fresh("full")
    small = folder / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=1m none "$0" && mkdir "$0/volume" && exec "$@"'
    volumes = [dict(name="shared", kind="directory", location=str(small / "volume"))]
    connector = stocked(folder, volumes=volumes, g3_path=None, g3_bytes=None)
    engine = lab.start(connector, prefix=["unshare", "-rm", "sh", "-c", script, str(small)])
    try:
        for number in range(6):
            ids = prompt(f"full {number}", 20)
            assert lab.same(engine, ids) == 0
            lab.until_cached(engine, ids, 20)
    finally:
        lab.end(engine)
    # A G3 that cannot be made is an error of the configuration, and says which file.
    connector = stocked(folder, volume=False, g3_path=str(small / "g3"))
    engine = lab.start(connector, prefix=["unshare", "-rm", "sh", "-c", script, str(small)])
    try:
        engine.wait()
        assert lab.same(engine, prompt("full 0", 20)) == 0
    except EngineFailed:
        assert str(small / "g3") in engine.log(), "the error does not name the file"
    finally:
        lab.end(engine)


@case("2")
def engine_killed_while_it_stores(lab):
    """kill -9 of all its processes once G3 has some blocks and more are on the way; then a restart."""
    folder = lab.fresh("killed")
    (folder / "volume").mkdir()
    asked = [prompt(f"killed {i}", 20) for i in range(8)]
    before = 0
    for _ in range(2):
        engine = lab.start(stocked(folder), num_gpu_blocks_override=400)
        engine.wait()
        cached = [lab.same(engine, ids) // BLOCK for ids in asked[:2]]
        assert sum(cached) >= min(before, 1), f"{before} blocks were in G3, and none was found"
        # Asks without waiting for the answer; killed as soon as one more block is in the file.
        engine.send("generate", requests=[dict(ids=ids, tokens=60) for ids in asked])
        wait_for("blocks are in G3", lambda: filled_blocks(folder) > before, 300)
        lab.engines.remove(engine)
        engine.kill()
        before = filled_blocks(folder)
        asked = [ids for ids in asked[:2]] + [prompt(f"killed later {i}", 20) for i in range(6)]
    with lab.engine(stocked(folder)) as engine:
        for ids in asked:
            lab.same(engine, ids)


@case("2")
def full_copy_of_the_stock_is_found(lab):
    """The control of this section: the same stock undamaged is found whole, on the volume alone too."""
    folder = lab.copy_of_stock("control", without=["g3"])
    with lab.engine(stocked(folder, g3_path=None, g3_bytes=None)) as engine:
        assert ask_for_stock(lab, engine) == STOCK
    shutil.rmtree(folder)
