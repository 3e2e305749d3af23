"""Cases of AshlarConnector over vLLM's scheduler, without a model: loads within the step that computes, and
loads that fail, of one group of layers and of several.

Like cases_units.py, of which it uses the layers and prompts. What a load brings is damaged in the memory of
G2, which scheduler and worker share in one process here.
"""
from cases_units import attention, check_hits, full, named, state, tokens, unit, whole, windowed


def checking_stepper(lab, layers=None, policy="recompute", **more):
    """An engine with AshlarConnector and G2 alone: what is damaged there is nowhere else."""
    connector = dict(kv_connector="AshlarConnector", kv_connector_module_path="ashlar.vllm_connector",
                     kv_load_failure_policy=policy)
    return lab.stepper(layers, connector=connector, **{"g3_path": None, "g3_bytes": None, **more})


def manager_of(engine):
    return engine.scheduler.connector.scheduler.manager


def damage(engine):
    """Flips a byte of every slot of G2."""
    manager_of(engine)._region.array[:, 100] ^= 1


def in_step(engine):
    """How many steps have loaded what they computed with."""
    return engine.seen["loads within a step"]


@unit("3")
def small_load_is_within_the_step(lab):
    """The step that schedules a request loads its blocks and computes: nothing waits for another step."""
    engine = checking_stepper(lab)
    ids = tokens("at once", 700)
    assert engine.run(ids) == 0 and in_step(engine) == 0
    assert engine.reset()
    name = engine.add(ids, 4)
    engine.step()
    assert engine.cached[name] == whole(700, 32) and in_step(engine) == 1
    assert len(engine.requests[name].output_token_ids) == 1, "the first step gave no token"
    engine.finish()
    assert manager_of(engine)._store.jobs == 0
    engine.close()


@unit("3")
def load_above_the_limit_is_between_steps(lab):
    """`sync_load_bytes`, for a request and for all of a step together; 0 turns loads within steps off."""
    page = full().page_size_bytes * 2
    ids, more = tokens("limit", 330), tokens("limit too", 330)
    for limit, within in ((0, 0), (9 * page, 0), (10 * page, 1), (20 * page, 2)):
        engine = checking_stepper(lab, sync_load_bytes=limit)
        engine.run(ids)
        engine.run(more)
        assert engine.reset()
        names = [engine.add(each, 4) for each in (ids, more)]
        engine.step()
        assert sum(name in engine.cached for name in names) == within, (limit, engine.cached)
        engine.finish()
        assert [engine.cached[name] for name in names] == [320, 320], limit
        engine.close()


@unit("3")
def hits_within_the_step(lab):
    """Parts, longer prompts, several at once, as for loads between steps; whole blocks alone as well."""
    engine = checking_stepper(lab, g2_bytes=256 << 20)
    check_hits(engine, 32)
    assert in_step(engine) >= 3
    ids = tokens("whole blocks", 640)
    engine.run(ids)
    assert engine.reset()
    assert engine.run(ids) >= 639
    engine.close()


@unit("3")
def blocks_of_a_load_within_the_step_are_not_shared_before_it(lab):
    """Their hashes are in vLLM's prefix cache before their bytes: a second request waits for its end."""
    engine = checking_stepper(lab)
    ids = tokens("not yet", 700)
    engine.run(ids)
    assert engine.reset()
    first, second = engine.add(ids, 8), engine.add(ids + tokens("and more", 90), 8)
    engine.step()
    assert first in engine.cached and second not in engine.cached
    engine.step()
    assert second in engine.cached, "it waits longer than a step"
    engine.finish()
    assert in_step(engine) == 1
    engine.close()


@unit("3")
def preempted_after_a_load_within_the_step(lab):
    """A small cache, long answers: requests that were loaded lose their blocks and are loaded again."""
    engine = checking_stepper(lab, blocks=60, settings=dict(max_model_len=1024))
    for turn in range(20):
        for i in range(5):
            engine.add(tokens(f"again {i}", 500), 150)
        engine.finish()
        if engine.seen["preempted"] >= 4 and in_step(engine) >= 8:
            break
    assert engine.seen["preempted"] >= 4 and in_step(engine) >= 8, engine.seen
    assert manager_of(engine)._store.jobs == 0
    engine.close()


@unit("3")
def cancelled_after_a_load_within_the_step(lab):
    """Cancelled right behind the step that loaded it, with another one beside it; and before that step."""
    from vllm.v1.request import RequestStatus

    engine = checking_stepper(lab)
    ids, kept = tokens("cancelled", 700), tokens("kept", 500)
    engine.run(ids)
    engine.run(kept)
    for steps in (0, 1, 2, 3):
        assert engine.reset()
        gone, stays = engine.add(ids, 40), engine.add(kept, 12)
        for _ in range(steps):
            engine.step()
        engine.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
        engine.finish()
        assert engine.cached[stays] == whole(500, 32)
    assert engine.reset()
    assert engine.run(ids) == whole(700, 32)
    assert manager_of(engine)._store.jobs == 0
    engine.close()


@unit("3")
def model_runner_v2_loads_between_steps(lab):
    """It does not go back with a running request, so damage within a step could not be computed again."""
    import os

    from ashlar._vllm_in_step import limit_of

    engine = checking_stepper(lab)
    config = engine.scheduler.vllm_config
    assert not config.use_v2_model_runner and limit_of(config, engine.cache_config) > 0
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    assert config.use_v2_model_runner and limit_of(config, engine.cache_config) == 0
    engine.close()


@unit("3")
def load_within_the_step_uses_the_cores_of_openmp(lab):
    """OpenMP binds the thread that loads to one core; the copy may use all that vLLM named."""
    import os

    from ashlar._vllm_worker import named_cores

    for name, value, cores in (
            ("GOMP_CPU_AFFINITY", "0 1 5", {0, 1, 5}), ("GOMP_CPU_AFFINITY", "0-2,7", {0, 1, 2, 7}),
            ("KMP_AFFINITY", "granularity=fine,explicit,proclist=[4,6]", {4, 6}),
            ("OMP_PLACES", "{2,3}", {2, 3}), ("OMP_PLACES", "cores", set()), ("PATH", "0", set())):
        assert named_cores({name: value}) == cores, (name, value)
    every = os.sched_getaffinity(0)
    os.environ["GOMP_CPU_AFFINITY"] = " ".join(map(str, every))
    engine = checking_stepper(lab)
    ids, seen = tokens("cores", 700), []
    engine.run(ids)
    assert engine.reset()
    worker = engine.workers[0].connector.connector_worker.worker
    load = worker._load
    worker._load = lambda *args: (seen.append((os.sched_getaffinity(0), args[3])), load(*args))[1]
    bound = {min(every)}
    os.sched_setaffinity(0, bound)
    assert engine.run(ids) == whole(700, 32)
    assert seen == [(every, min(4, len(every)))], seen
    assert os.sched_getaffinity(0) == bound
    engine.close()


# ---- loads that fail


def stored_and_damaged(engine, *prompts):
    for ids in prompts:
        engine.run(ids)
    assert engine.reset()
    damage(engine)


@unit("6")
def damage_within_the_step_is_computed_again(lab):
    """In pieces of 256 tokens: what the failed step computed is not stored, and while the prompt is computed
    again no request finds its blocks."""
    engine = checking_stepper(lab, settings=dict(max_num_batched_tokens=256))
    ids = tokens("damaged", 1000)
    stored_and_damaged(engine, ids)
    longer = ids + tokens("goes on", 200)
    first = engine.add(longer, 8)
    engine.step()
    assert in_step(engine) == 1 and engine.workers[0].seen["rubbish"] == 1
    others = [engine.add(longer + tokens(f"beside {i}", 40), 8) for i in range(3)]
    engine.finish()
    # The answer says 992 cached tokens, as of the attempt; the rest of these found none that was damaged.
    assert engine.requests[first].num_output_tokens == 8
    assert all(engine.requests[name].num_output_tokens == 8 for name in others)
    assert engine.reset()
    engine.run(longer)
    assert engine.reset()
    assert engine.run(longer) == whole(1200, 32), "it is not stored again"
    assert engine.workers[0].seen["rubbish"] == 1
    engine.close()


@unit("6")
def damage_of_a_request_that_was_cancelled_meanwhile(lab):
    """Cancelled between the workers' end and the scheduler's: its blocks are free, and found by nobody."""
    from vllm.v1.request import RequestStatus

    for policy in ("recompute", "fail"):
        engine = checking_stepper(lab, policy=policy)
        ids = tokens(f"cancelled damage, {policy}", 1000)
        stored_and_damaged(engine, ids)
        longer = ids + tokens("goes on", 200)
        name = engine.add(longer, 8)
        engine.step(lambda: engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED))
        assert engine.workers[0].seen["rubbish"] == 1
        engine.finish()  # its store, which nobody finds, ends before those blocks are stored again
        assert engine.run(longer) == 0, "a block of the request that was cancelled is found"
        assert engine.reset()
        assert engine.run(longer) == whole(1200, 32), "it is not stored again"
        assert engine.workers[0].seen["rubbish"] == 1
        engine.close()


@unit("6")
def slots_that_g3_fills_are_not_taken_for_damaged(lab):
    """A slot keeps the seal of what was stored in it, also where another block of that job comes into it."""
    engine = lab.stepper(connector=dict(kv_connector="AshlarConnector",
                                        kv_connector_module_path="ashlar.vllm_connector",
                                        kv_load_failure_policy="fail"),
                         g2_bytes=64 * full().page_size_bytes * 2)
    prompts = [tokens(f"around {i}", 330) for i in range(10)]
    for _ in range(6):
        for ids in prompts:
            engine.run(ids)
            assert engine.reset()
    counters = manager_of(engine)._store.counters
    assert counters["hits_disk"] > 100 and counters["loaded"] > 100, counters
    assert counters["damaged"] == 0, counters
    engine.close()


def check_recomputed(engine, ids, size):
    """A damaged load of several groups: computed again, stored again; others are not touched."""
    longer = ids + tokens("goes on", 50)
    name, other = engine.add(longer, 8), engine.add(tokens("beside", 300), 8)
    engine.finish()
    assert engine.requests[name].num_output_tokens == engine.requests[other].num_output_tokens == 8
    manager = manager_of(engine)
    assert manager._store.counters["damaged"] > 0
    assert engine.reset()
    engine.run(longer)
    assert engine.reset()
    assert engine.run(longer + tokens("further", 90)) == whole(len(longer), size), "it is not stored again"
    assert manager._store.jobs == 0


def check_refused(engine, ids, size):
    """Policy fail: an error for the request alone; the next one computes."""
    from vllm.v1.request import RequestStatus

    name, other = engine.add(ids + tokens("goes on", 50), 8), engine.add(tokens("beside", 300), 8)
    engine.finish()
    assert engine.requests[name].status == RequestStatus.FINISHED_ERROR, engine.requests[name].status
    assert engine.requests[other].num_output_tokens == 8
    manager = manager_of(engine)
    assert manager._store.counters["damaged"] > 0
    engine.run(ids)
    assert engine.reset()
    assert engine.run(ids) == whole(len(ids), size), "it is not stored again"
    assert manager._store.jobs == 0


@unit("6")
def damage_within_the_step_fails_its_request_alone(lab):
    engine = checking_stepper(lab, policy="fail", settings=dict(max_num_batched_tokens=256))
    ids = tokens("refused", 1000)
    stored_and_damaged(engine, ids)
    check_refused(engine, ids, 32)
    assert in_step(engine) > 0
    # The step computes a part of what follows, and ends within a block.
    longer = ids + tokens("much longer", 500)
    assert engine.reset()
    damage(engine)
    engine.add(longer, 8)
    engine.finish()
    assert engine.workers[0].seen["rubbish"] == 2
    for cached in (0, whole(1500, 32)):
        assert engine.run(longer) == cached, "a block of the request that was refused is found"
        assert engine.reset()
    engine.close()


@unit("6")
def damage_between_steps_is_computed_again(lab):
    engine = checking_stepper(lab, sync_load_bytes=0)
    ids = tokens("between", 1000)
    stored_and_damaged(engine, ids)
    check_recomputed(engine, ids, 32)
    engine.close()


def window_beside_full(lab, policy):
    return checking_stepper(lab, named([windowed(), full()] * 2), policy, blocks=600)


def states_beside_full(lab, policy):
    page = full(784).page_size_bytes
    return checking_stepper(lab, named([state(784, page)] * 3 + [full(784)]), policy, blocks=100,
                            settings=dict(mamba_cache_mode="align"))


@unit("6")
def damaged_window_is_computed_again(lab):
    engine = window_beside_full(lab, "recompute")
    ids = tokens("damaged window", 1000)
    stored_and_damaged(engine, ids)
    check_recomputed(engine, ids, 32)
    engine.close()


@unit("6")
def damaged_window_fails_its_request_alone(lab):
    engine = window_beside_full(lab, "fail")
    ids = tokens("refused window", 1000)
    stored_and_damaged(engine, ids)
    check_refused(engine, ids, 32)
    engine.close()


@unit("6")
def damaged_state_is_computed_again(lab):
    engine = states_beside_full(lab, "recompute")
    ids = tokens("damaged state", 3500)
    stored_and_damaged(engine, ids)
    check_recomputed(engine, ids, 784)
    engine.close()


@unit("6")
def damaged_state_fails_its_request_alone(lab):
    engine = states_beside_full(lab, "fail")
    ids = tokens("refused state", 3500)
    stored_and_damaged(engine, ids)
    check_refused(engine, ids, 784)
    engine.close()


@unit("3")
def each_rank_loads_within_the_step(lab):
    from cases_ranks import two_ranks
    engine = checking_stepper(lab, attention(2), settings=two_ranks())
    ids = tokens("ranks", 700)
    engine.run(ids)
    assert engine.reset()
    assert engine.run(ids) == whole(700, 32) and in_step(engine) == 1
    engine.close()
