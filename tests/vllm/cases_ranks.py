"""Cases over vLLM's scheduler and connector with two workers, without a model: tensor parallelism,
canonical pages.

Like cases_units.py, of which it uses the layers and prompts.
"""
from cases_units import attention, latent, named, tokens, unit, whole
from lab import objects


def two_ranks(**more):
    """Settings of an engine with two workers. They are not started: the stepper has both in one process."""
    return dict(tensor_parallel_size=2, distributed_executor_backend="mp", **more)


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
