"""Cases over vLLM's scheduler and connector, without a model: the bytes that our spec sees of the engine's
pages, and what later versions of vLLM may pass to it.

Like cases_units.py, of which it uses the layers and prompts.
"""
from cases_ranks import canonical, two_ranks
from cases_units import attention, full, named, tokens, unit, whole, windowed
from lab import objects


def stored_pages(engine, ids):
    """Runs a prompt. Returns by slot of G2, and by layer, the pages that each rank had when it stored there;
    and what the slots then hold."""
    seen, rows = {}, {}

    def watch(worker):
        theirs = worker.connector.connector_worker.worker
        store = theirs._store

        def watched(spec, places, after):
            for group, blocks, slots, _ in places:
                for block, slot in zip(blocks, slots):
                    for layer in engine.groups[group].layer_names:
                        page = worker.pages[layer][block].tobytes()
                        seen.setdefault(int(slot), {}).setdefault(layer, {})[worker.rank] = page
            return store(spec, places, after)
        theirs._store = watched
        return theirs
    workers = [watch(worker) for worker in engine.workers]
    engine.run(ids)
    for each in workers:
        each.wait(set(each._pending))
    for slot in seen:
        rows[slot] = workers[0]._region.array[slot].tobytes()
    return seen, rows


@unit("5")
def slots_have_the_pages_that_the_engine_wrote(lab):
    """One behind the other: the layers of the block's group, rank by rank. Full attention, windows, two
    ranks."""
    both = named([windowed(), full()] * 2)
    for layers, settings in ((attention(2), {}), (both, {}), (attention(2), two_ranks())):
        engine = lab.stepper(layers, blocks=600, settings=settings, g3_path=None, g3_bytes=None)
        seen, rows = stored_pages(engine, tokens("pages", 700))
        assert len(seen) > 21 if layers is both else len(seen) == 21, len(seen)
        for slot, pages in seen.items():
            ranks = sorted(next(iter(pages.values())))
            assert len(ranks) == len(engine.workers)
            right = b"".join(pages[layer][rank] for rank in ranks for layer in pages)
            assert any(right), "pages of zeros"
            assert rows[slot][:len(right)] == right, f"slot {slot} of {list(pages)}"
        engine.close()


@unit("5")
def canonical_slots_do_not_depend_on_ranks(lab):
    """Layer by layer the heads of all ranks, as the engine wrote them: the same for one rank and two."""
    found = []
    for ranks in (1, 2):
        engine = canonical(lab, ranks)
        seen, rows = stored_pages(engine, tokens("canonical pages", 700))
        assert len(seen) == 21, len(seen)
        for slot, pages in seen.items():
            right = b"".join(pages[layer][rank] for layer in pages for rank in sorted(pages[layer]))
            assert rows[slot][:len(right)] == right, f"slot {slot}, {ranks} ranks"
        found.append(set(rows.values()))
        engine.close()
        for path in objects(lab.folder / "volume"):
            path.unlink()  # the next engine is to store its own
    assert found[0] == found[1] and len(found[0]) == 21


@unit("5")
def of_a_window_only_its_end_is_loaded(lab):
    """A window of 100 tokens is four blocks of 32 at most; of full attention every block is loaded. What lies
    before the window is not asked for."""
    engine = lab.stepper(named([windowed(), full()] * 2), blocks=600, g3_path=None, g3_bytes=None)
    kinds = [bool(getattr(group.kv_cache_spec, "sliding_window", None)) for group in engine.groups]
    assert sorted(kinds) == [False, True]
    worker = engine.workers[0].connector.connector_worker.worker
    load, loaded = worker._load, []

    def watched(spec, places, after, threads):
        loaded.extend((kinds[group], len(blocks)) for group, blocks, _, _ in places)
        return load(spec, places, after, threads)
    worker._load = watched
    ids = tokens("window's end", 3500)
    assert engine.run(ids) == 0
    assert engine.reset()
    assert engine.run(ids) == whole(3500, 32)
    assert sum(count for is_window, count in loaded if not is_window) == 109
    assert 3 <= sum(count for is_window, count in loaded if is_window) <= 4, loaded


@unit("1")
def arguments_of_later_versions_are_handed_on(lab):
    """Spec and connector take keywords that they do not know, and hand them to vLLM's own classes, which
    know them; without those an unknown keyword is vLLM's error, not silence."""
    import ashlar.vllm as spec
    from ashlar.vllm_connector import AshlarConnector
    from stepper import engine_config
    from vllm.config import set_current_vllm_config
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
    from vllm.v1.kv_offload.base import OffloadingSpec

    engine = lab.stepper(g3_path=None, g3_bytes=None)
    config = engine.workers[0].connector.connector_worker.spec.config
    settings = engine_config(lab.lab.model, dict(
        kv_connector="AshlarConnector", kv_connector_module_path="ashlar.vllm_connector", kv_role="kv_both",
        kv_connector_extra_config=dict(g2_bytes=64 << 20)))

    def later(kept, given):
        def init(self, *arguments, added=None):
            given.append(added)
            kept(self, *arguments)
        return init
    for theirs, make in (
            (OffloadingSpec, lambda: spec.AshlarOffloadingSpec(config, added=1)),
            (OffloadingConnector, lambda: AshlarConnector(settings, KVConnectorRole.SCHEDULER,
                                                          engine.cache_config, added=1))):
        with set_current_vllm_config(settings):
            try:
                make()
            except TypeError as error:
                assert "added" in str(error), error
            else:
                raise AssertionError("an unknown keyword was swallowed")
            kept, given = theirs.__init__, []
            theirs.__init__ = later(kept, given)
            make()
            theirs.__init__ = kept
            assert given == [1], given
    engine.close()
