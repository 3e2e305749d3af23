"""Cases over vLLM's scheduler and connector with two workers, without a model: tensor parallelism,
canonical pages.

Like cases_units.py, of which it uses the layers and prompts.
"""
import dataclasses

from cases_units import HEADS, attention, full, latent, named, tokens, unit, whole
from lab import objects


def two_ranks(ranks=2, **more):
    """Settings of an engine with two workers. They are not started: the stepper has all in one process."""
    return dict(tensor_parallel_size=ranks, distributed_executor_backend="mp", **more)


@unit("5")
def each_rank_gets_its_own_heads(lab):
    """Two ranks write different bytes; each must find its own."""
    engine = lab.stepper(attention(2), settings=two_ranks(), volumes=lab.volumes())
    assert len(engine.workers) == 2
    ids = tokens("ranks", 700)
    assert engine.run(ids) == 0
    assert engine.reset()
    assert engine.run(ids) == whole(700, 32)
    engine.close()
    again = lab.stepper(attention(2), settings=two_ranks(), volumes=lab.volumes())
    assert again.run(ids) == whole(700, 32)
    assert all(worker.seen["read"] >= 2 * whole(700, 32) for worker in again.workers)
    again.close()
    alone = lab.stepper(attention(2), volumes=lab.volumes())
    assert alone.run(ids) == 0, "blocks of two ranks were used by one"
    alone.close()


def stored_by(lab, name, layers, settings):
    """Bytes on the volume after one prompt, by objects."""
    lab.folder = lab.lab.fresh(name)
    (lab.folder / "volume").mkdir()
    engine = lab.stepper(layers, settings=settings, volumes=lab.volumes(), g3_path=None, g3_bytes=None)
    ids = tokens("once", 700)
    engine.run(ids)
    assert engine.reset()
    assert engine.run(ids) == whole(700, 32)
    engine.close()
    return [path.stat().st_size for path in objects(lab.folder / "volume")]


@unit("5")
def latent_of_all_ranks_is_stored_once(lab):
    """MLA: both ranks hold the same bytes, and the tiers hold them once."""
    one = stored_by(lab, "alone", named([latent()] * 2), {})
    from stepper import engine_config  # noqa: F401  the model is a Llama: say that it has latents
    from vllm.config import ModelConfig
    kept = ModelConfig.use_mla
    ModelConfig.use_mla = True
    try:
        two = stored_by(lab, "ranks", named([latent()] * 2), two_ranks())
    finally:
        ModelConfig.use_mla = kept
    assert len(one) == len(two) == 21, (len(one), len(two))
    assert sum(two) == sum(one), f"{sum(two)} bytes of two ranks, {sum(one)} of one"


def canonical(lab, ranks):
    """An engine of that many ranks, each with its share of the model's two heads, over pages that do not
    depend on their number."""
    layers = named([dataclasses.replace(full(), num_kv_heads=HEADS // ranks)] * 2)
    return lab.stepper(layers, settings=two_ranks() if ranks == 2 else {}, volumes=lab.volumes(),
                       g3_path=None, g3_bytes=None, canonical_layout=True, by_head=True)


@unit("5")
def canonical_pages_are_shared_by_other_ranks(lab):
    """What one rank stored two find, head by head, and the other way round."""
    for first, second in ((1, 2), (2, 1)):
        ids = tokens(f"canonical {first}", 700)
        engine = canonical(lab, first)
        assert engine.run(ids) == 0
        assert engine.reset()
        assert engine.run(ids) == whole(700, 32)
        engine.close()
        engine = canonical(lab, second)
        assert engine.run(ids) == whole(700, 32), f"{second} ranks do not find blocks of {first}"
        assert all(worker.seen["read"] >= 2 * whole(700, 32) for worker in engine.workers)
        engine.close()


def of_four_ranks(lab, **more):
    """Four ranks for the model's two heads: two have each."""
    layers = named([dataclasses.replace(full(), num_kv_heads=1)] * 2)
    return lab.stepper(layers, settings=two_ranks(4), volumes=lab.volumes(), g3_path=None, g3_bytes=None,
                       by_head=True, copies=2, **more)


@unit("5")
def replicated_heads(lab):
    """More ranks than heads: each rank finds its copy, after a reset and after a restart."""
    ids = tokens("copies", 700)
    for cached in (0, whole(700, 32)):
        engine = of_four_ranks(lab)
        assert engine.run(ids) == cached
        assert engine.reset()
        assert engine.run(ids) == whole(700, 32)
        assert all(worker.seen["read"] >= 2 * whole(700, 32) for worker in engine.workers)
        engine.close()


@unit("5")
def canonical_pages_of_replicated_heads(lab):
    """Two ranks write one head in turns, block by block, and four ranks find both. Where heads are held
    twice, blocks are of this number of ranks: another one is a miss."""
    ids = tokens("canonical copies", 700)
    for cached in (0, whole(700, 32)):
        engine = of_four_ranks(lab, canonical_layout=True)
        assert engine.run(ids) == cached
        assert engine.reset()
        assert engine.run(ids) == whole(700, 32)
        engine.close()
    alone = canonical(lab, 1)
    assert alone.run(ids) == 0
    alone.close()


@unit("5")
def canonical_pages_of_a_latent(lab):
    """MLA: stored once, by one rank for each block in turn, and found by any number of ranks."""
    from vllm.config import ModelConfig
    kept = ModelConfig.use_mla
    ModelConfig.use_mla = True
    ids = tokens("canonical latent", 700)

    def engine_of(ranks):
        return lab.stepper(named([latent()] * 2), settings=two_ranks() if ranks == 2 else {},
                           volumes=lab.volumes(), g3_path=None, g3_bytes=None, canonical_layout=True)
    try:
        for ranks, cached in ((2, 0), (1, whole(700, 32)), (2, whole(700, 32))):
            engine = engine_of(ranks)
            assert engine.run(ids) == cached, f"{ranks} ranks"
            engine.close()
    finally:
        ModelConfig.use_mla = kept
