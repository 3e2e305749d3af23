"""Cases over vLLM's scheduler and connector, without a model: what is told of our tiers, and what hints do.

Like cases_units.py, of which it uses the layers and prompts.
"""
from cases_units import tokens, unit, whole


class Heard:
    """Stands for vLLM's publisher; keeps what the engine would publish, by medium."""

    def __init__(self):
        self.blocks = {}
        self.keys = {}  # of vLLM, by the number that events have
        self.tokens = 0

    def publish(self, batch):
        for event in batch.events:
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                self.blocks.pop("GPU", None)
                continue
            if event.medium != "GPU":
                # What `ashlar serve` counts as the engine's own.
                assert (event.locality, event.ownership) in (("LOCAL", None), ("LOCAL", "engine")), event
            held = self.blocks.setdefault(event.medium, {})
            for each in event.block_hashes:
                held[each] = held.get(each, 0) + (1 if kind == "BlockStored" else -1)
                assert held[each] >= 0, f"{event.medium}: a block is removed that was not stored"
            if kind == "BlockStored" and event.medium != "GPU":
                told = event.block_size * len(event.block_hashes)
                assert len(event.token_ids) == told > 0, "an event without its tokens"
                self.tokens += len(event.token_ids)

    def shutdown(self):
        pass

    def held(self, medium):
        return {each for each, count in self.blocks.get(medium, {}).items() if count > 0}


def telling(lab, **extra):
    """An engine with events, and what is heard of them."""
    from vllm.config import KVEventsConfig

    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    engine = lab.stepper(settings=dict(kv_events_config=events), **extra)
    heard = engine.scheduler.kv_event_publisher = Heard()
    manager = engine.scheduler.connector.scheduler.manager
    know = manager._events.know

    def known(key):
        heard.keys[int.from_bytes(key[:-4], "big") & (1 << 64) - 1] = key
        know(key)
    manager._events.know = known
    return engine, heard, manager


def check_told(engine, heard, manager):
    """What was told of each tier is what it holds, by number and by name. Stores to files run behind: steps
    until it is so. Returns the numbers of G2 and G3."""
    for _ in range(20000):
        manager._kv.drain()
        engine.step()
        status = manager._kv.status
        held = [tier["pool"].total - tier["pool"].reset for tier in (status["g2"], status["g3"])]
        told = [len(heard.held(medium)) for medium in ("CPU", "STORAGE")]
        if held == told:
            for tier, medium in ((1, "CPU"), (2, "STORAGE")):
                assert holds(manager, heard, medium, tier), f"{medium}: names of other blocks were told"
            return held
    raise AssertionError(f"G2 and G3 hold {held} blocks, {told} were told")


def holds(manager, heard, medium, tier):
    """Whether the tier has every block that was told of it."""
    names = [manager._store.name(heard.keys[each]) for each in heard.held(medium)]
    return all(int(each) >> tier & 1 for each in manager._kv.presence(names))


@unit("7")
def events_say_what_our_tiers_hold(lab):
    """G2 evicts all the time: what was stored less what was removed is what the tiers have."""
    engine, heard, manager = telling(lab, g2_bytes=2 << 20)
    for i in range(12):
        engine.run(tokens(f"told {i % 5}", 900))
        assert engine.reset()
    engine.run(tokens("last", 300))
    assert heard.tokens > 0
    g2, g3 = check_told(engine, heard, manager)
    assert 0 < g2 <= 64 and g3 > 64, (g2, g3)


@unit("7")
def events_that_were_lost_are_made_up_for(lab):
    """A log that is much too short: what was told is compared with what is there, and no key is kept for
    a block that is gone."""
    import ashlar.vllm as spec

    real = spec.KvBlockManager
    spec.KvBlockManager = lambda **options: real(**{**options, "events": 8})
    engine, heard, manager = telling(lab, g2_bytes=2 << 20, g3_bytes=4 << 20)
    for i in range(12):
        engine.run(tokens(f"lost {i}", 900))
        assert engine.reset()
    assert manager._events.gaps > 0, "no event was lost"
    g2, g3 = check_told(engine, heard, manager)
    assert 0 < g2 <= 64 and 0 < g3 <= 128, (g2, g3)
    assert len(manager._events) <= g2 + g3, "keys of blocks that are gone"


@unit("7")
def reset_takes_back_what_was_told(lab):
    engine, heard, manager = telling(lab)
    ids = tokens("taken back", 900)
    engine.run(ids)
    before = check_told(engine, heard, manager)
    assert before == [28, 28], before
    assert engine.reset(connector=True)
    engine.step()
    assert not heard.held("CPU") and not heard.held("STORAGE"), heard.blocks
    assert len(manager._events) == 0
    engine.run(ids)
    assert check_told(engine, heard, manager) == before, "it is not stored again after the reset"
    assert len(manager._events) == 28


@unit("7")
def blocks_of_before_a_restart_are_told_when_found(lab):
    """A file has the names of its blocks, not their tokens: they are told with the first request for them."""
    ids = tokens("restarted", 900)
    engine, heard, manager = telling(lab)
    engine.run(ids)
    check_told(engine, heard, manager)
    engine.close()
    engine, heard, manager = telling(lab)
    engine.step()
    assert not heard.held("STORAGE")
    assert engine.run(ids) == whole(900, 32)
    assert check_told(engine, heard, manager) == [28, 28]


# ---- hints


def envelope(*actions):
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope

    return KvHintsEnvelope(protocol_version="1.0", message_id="m", actions=[
        KvHintAction(action_id=f"a-{i}", action_type=kind, action_version="1.0", payload=payload)
        for i, (kind, payload) in enumerate(actions)])


@unit("7")
def outcomes_of_hints_are_in_the_answer(lab):
    """With AshlarConnector; behind OffloadingConnector only counters say them."""
    engine = lab.stepper(connector=dict(kv_connector="AshlarConnector",
                                       kv_connector_module_path="ashlar.vllm_connector"))
    ids = tokens("hinted", 330)
    first = engine.add(ids)
    engine.finish()
    hashes = [bytes(each).hex() for each in engine.requests[first].block_hashes[:10]]
    hints = envelope(("kv.pin", dict(block_hashes=hashes[:2], seconds=60)),
                     ("kv.retain", dict(block_hashes=[*hashes, "00" * 32], priority=90)),
                     ("kv.prefetch", dict(block_hashes=hashes)),
                     ("kv.fetch", dict(block_hashes=[1], source_control_endpoint="127.0.0.1:1")))
    answers = []
    kept = engine.scheduler.connector.request_finished_all_groups

    def finished(*arguments):
        answers.append(kept(*arguments)[1])
        return False, answers[-1]
    engine.scheduler.connector.request_finished_all_groups = finished
    engine.run(tokens("hints", 100), 8, kv_hints=hints)
    [said] = answers
    found = [each["outcome"] for each in said["ashlar_hints"]]
    assert found[:2] == ["accepted", "clipped"] and found[3] == "refused", said
    assert found[2] in ("accepted", "deferred"), said
    assert said["ashlar_hints"][1]["why"] == "10 of 11 blocks are here", said
    engine.run(tokens("none", 100), 8)
    assert answers[1] is None, answers


@unit("7")
def a_hint_fetches_blocks_of_another_engine(lab):
    """kv.fetch, as routers send it: the second engine knows no peers, the hint names the first."""
    remote = dict(listen="127.0.0.1:0")
    tiers = dict(g3_path=None, g3_bytes=None, remote=remote)
    first = lab.stepper(**tiers)
    ids = tokens("fetched", 330)
    name = first.add(ids)
    first.finish()
    numbers = [int.from_bytes(each, "big") & (1 << 64) - 1 for each in first.requests[name].block_hashes[:10]]
    manager = first.scheduler.connector.scheduler.manager
    fetch = ("kv.fetch", dict(block_hashes=numbers, mode="copy",
                              source_control_endpoint=manager._kv.remote_address))
    second = lab.stepper(**tiers)
    hints = second.scheduler.connector.scheduler.manager._hints
    second.add(tokens("carries the hint", 100), 4, kv_hints=envelope(fetch))
    second.finish()
    while hints.busy:
        second.step()
    assert hints.counters["hints_accepted"] == 1, hints.counters
    first.close()
    assert second.run(ids) == whole(330, 32), "the blocks that were fetched are not found"
    second.close()


# ---- what hints do


def small_g2(lab, **more):
    """A G2 of 64 blocks, of which hints may pin 16, over G3 unless told otherwise; and its manager."""
    engine = lab.stepper(g2_bytes=2 << 20, **more)
    return engine, engine.scheduler.connector.scheduler.manager


def stored(engine, seed, count=330):
    """Runs a prompt of whole blocks and five tokens; returns it, its hashes in hex and its names."""
    ids = tokens(seed, count)
    name = engine.add(ids)
    engine.finish()
    manager = engine.scheduler.connector.scheduler.manager
    hashes = [bytes(each) for each in engine.requests[name].block_hashes[:count // 32]]
    return ids, [each.hex() for each in hashes], [manager._store.name(each + bytes(4)) for each in hashes]


def hint(engine, kind, **payload):
    """A request that carries it."""
    engine.add(tokens(f"carries {kind} {engine.count}", 20), 2, kv_hints=envelope((kind, payload)))
    engine.finish()


def push(engine, seed, prompts=3, count=900):
    """Stores prompts, which G2 has to make room for. Then all is where it goes."""
    for i in range(prompts):
        engine.run(tokens(f"pushes {seed} {i}", count))
    engine.scheduler.connector.scheduler.manager._kv.drain()


def held(manager, names, tier=1):
    """How many of these a tier has. 1: G2, 2: G3."""
    return sum(int(each) >> tier & 1 for each in manager._kv.presence(names))


@unit("7")
def a_pin_keeps_blocks_in_g2(lab):
    engine, manager = small_g2(lab, g3_path=None, g3_bytes=None)
    ids, hashes, names = stored(engine, "pinned")
    _, _, others = stored(engine, "not pinned")
    hint(engine, "kv.pin", block_hashes=hashes, seconds=3600)
    push(engine, "pin")
    assert (held(manager, names), held(manager, others)) == (10, 0)
    assert engine.reset()
    assert engine.run(ids) == whole(330, 32)
    assert manager._hints.counters["hints_accepted"] == 1
    engine.close()


@unit("7")
def pins_have_a_limit(lab):
    """`max_pinned_share`: what is above it is refused or clipped, and G2 goes on."""
    engine, manager = small_g2(lab, g3_path=None, g3_bytes=None, max_pinned_share=0.125)
    _, hashes, _ = stored(engine, "many")
    hint(engine, "kv.pin", block_hashes=hashes, seconds=3600)
    counters = manager._hints.counters
    assert counters["hints_accepted"] == 0 and sum(counters.values()) == 1, counters
    ids, _, _ = stored(engine, "others", 900)
    assert engine.reset()
    assert engine.run(ids) == whole(900, 32)
    engine.close()


@unit("7")
def retained_blocks_leave_g2_last(lab):
    engine, manager = small_g2(lab, g3_path=None, g3_bytes=None)
    _, hashes, names = stored(engine, "retained")
    _, _, others = stored(engine, "not retained")
    hint(engine, "kv.retain", block_hashes=hashes, priority=100)
    push(engine, "retain")
    assert (held(manager, names), held(manager, others)) == (10, 0)
    engine.close()


@unit("7")
def demoted_blocks_go_down_and_leave_g2_first(lab):
    engine, manager = small_g2(lab)
    _, _, older = stored(engine, "older")
    ids, hashes, names = stored(engine, "demoted")
    hint(engine, "kv.demote", block_hashes=hashes)
    manager._kv.drain()
    assert held(manager, names, tier=2) == 10
    # Of 64 blocks 20 are here, and 52 come: 8 have to go.
    push(engine, "demote", 2, 840)
    assert held(manager, older) == 10 and held(manager, names) == 2
    assert engine.reset()
    assert engine.run(ids) == whole(330, 32), "they are not found in G3"
    engine.close()


@unit("7")
def prefetched_blocks_are_in_g2_when_asked_for(lab):
    engine, manager = small_g2(lab)
    ids, hashes, names = stored(engine, "prefetched")
    manager._kv.drain()
    push(engine, "prefetch")
    assert (held(manager, names), held(manager, names, tier=2)) == (0, 10)
    hint(engine, "kv.prefetch", block_hashes=hashes, seconds=60)
    while manager._hints.busy:
        engine.step()
    assert held(manager, names) == 10
    before = manager._store.counters
    assert engine.reset()
    assert engine.run(ids) == whole(330, 32)
    after = manager._store.counters
    assert after["hits_host"] - before["hits_host"] == 10 and after["hits_disk"] == before["hits_disk"]
    engine.close()


@unit("3")
def what_computes_sooner_stays_below(lab):
    """`compute_tokens_per_second`: an engine that computes faster than G3 can read leaves blocks there, once
    it has seen how fast G3 is; one that computes slowly loads them."""
    first, second = tokens("gate", 700), tokens("gate too", 700)
    engine = lab.stepper()
    engine.run(first)
    engine.run(second)
    engine.close()
    for speed, expected in ((1e15, 0), (1e-3, whole(700, 32))):
        engine = lab.stepper(compute_tokens_per_second=speed)
        assert engine.run(first) == whole(700, 32), "what is not known yet is loaded"
        assert engine.run(second) == expected, f"{speed} tokens/s"
        engine.close()
