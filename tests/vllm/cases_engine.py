"""Cases on one running engine: hits from G2, requests that meet, preemption, identities, resets, counters.

All share the engine `Lab.tiers`; each has prompts of its own.
"""
import pathlib

from lab import BLOCK, TOKENS, case, objects, offloading, prompt, wait_for


@case("0")
def a_wrong_block_would_show(lab):
    """Not about us: shows that the comparison of answers can fail."""
    for position in (0, 5, 11):
        right, wrong = prompt("sound", 12), prompt("sound", 12)
        wrong[position * BLOCK:(position + 1) * BLOCK] = prompt(f"other {position}", 1, 0)
        assert lab.expected(right) != lab.expected(wrong), f"block {position} does not matter to the model"


@case("1")
def cold(lab):
    assert lab.same(lab.tiers(), prompt("cold", 9)) == 0


@case("1")
def attached_and_idle(lab):
    """Prompts too short to store, and one that the engine's own cache serves: our tiers give nothing."""
    engine = lab.tiers()
    ids = prompt("idle", 6)
    lab.same(engine, ids)
    before = engine.metric("vllm:external_prefix_cache_hits")
    for i in range(3):
        assert lab.same(engine, prompt(f"short {i}", 0, 9 + i)) == 0
    assert lab.same(engine, ids) == 6 * BLOCK
    assert engine.metric("vllm:external_prefix_cache_hits") == before


@case("1")
def engine_cache_reset_serves_from_g2(lab):
    engine = lab.tiers()
    ids = prompt("reset", 11)
    lab.same(engine, ids)
    lab.until_cached(engine, ids, 11)
    # A shorter prefix, a longer prompt and one that leaves the prefix early.
    for blocks, others in ((11, prompt("longer", 3)), (4, prompt("leaves", 2))):
        assert engine.reset()
        assert lab.same(engine, ids[:blocks * BLOCK] + others) == blocks * BLOCK
    assert engine.reset()
    assert lab.same(engine, ids[:6 * BLOCK + 1]) == 6 * BLOCK


@case("1")
def prompt_of_whole_blocks(lab):
    """All of it is loaded; vLLM then computes its last token again."""
    engine = lab.tiers()
    ids = prompt("whole", 8, 0)
    lab.same(engine, ids)
    lab.until_cached(engine, ids, 8)


@case("3")
def preempted_request_while_its_stores_run(lab):
    """Long requests overflow the engine's cache: preempted with stores in flight, and taken up again."""
    engine = lab.tiers()
    before = engine.metric("vllm:num_preemptions")
    requests = [dict(ids=prompt(f"preempted {i}", 20), tokens=150) for i in range(5)]
    for _ in range(20):  # until it has happened
        assert engine.reset()
        for asked, answer in zip(requests, engine.together(requests)):
            lab.is_right(answer, asked["ids"], 150)
        if engine.metric("vllm:num_preemptions") >= before + 3:
            break
    else:
        raise AssertionError("no request was preempted")
    for asked in requests:
        assert engine.reset()
        lab.same(engine, asked["ids"], 150)


@case("3")
def cancelled_request(lab):
    """Cancelled while it is computed, and while it is loaded; the others' answers stay right."""
    engine = lab.tiers()
    kept, gone = prompt("kept", 14), prompt("cancelled", 18)
    for after in (0, 1, 2, 5):
        assert engine.reset()
        requests = [dict(ids=gone, tokens=80), dict(ids=kept, tokens=TOKENS)]
        answers = engine.ask("generate_and_abort", requests=requests, abort=[0], after=after)
        assert answers[0] is None or answers[0]["reason"] == "abort", answers[0]
        lab.is_right(answers[1], kept)
    lab.until_cached(engine, gone, 18)


@case("3")
def two_requests_with_one_prefix_at_once(lab):
    engine = lab.tiers()
    shared = prompt("both", 10, 0)
    asked = [shared + prompt(f"both {i}", i, 7) for i in range(4)]
    requests = [dict(ids=ids, tokens=TOKENS) for ids in asked]
    for _ in range(3):  # stored together, then loaded together
        assert engine.reset()
        for ids, answer in zip(asked, engine.together(requests)):
            lab.is_right(answer, ids)
    lab.until_cached(engine, asked[3], 13)


@case("3")
def store_comes_after_forward(lab):
    """Every block of a chunked prefill beside decoding requests is stored as it was computed."""
    engine = lab.tiers()
    asked = [prompt(f"ordered {i}", 12 + i) for i in range(4)]
    for ids, answer in zip(asked, engine.together([dict(ids=ids, tokens=40) for ids in asked])):
        lab.is_right(answer, ids, 40)
    for ids in asked:
        lab.until_cached(engine, ids, (len(ids) - 5) // BLOCK)


@case("3")
def volume_that_never_answers_stalls_nothing(lab):
    """Every call to the volume hangs for ever from some moment on: an answer proves that no step waits."""
    library = pathlib.Path(lab.program).with_name("vllm_never_answers.so")
    folder = lab.fresh("hangs")
    volume = folder / "volume"
    volume.mkdir()
    connector = offloading(folder, volumes=[dict(name="shared", kind="directory", location=str(volume))],
                           g3_path=None, g3_bytes=None, fetch_limit=1)
    preloaded = dict(LD_PRELOAD=str(library), ASHLAR_TEST_NEVER_ANSWERS=str(volume))
    engine = lab.start(connector, environment=preloaded)
    try:
        ids = prompt("before it hangs", 10)
        lab.same(engine, ids)
        lab.until_cached(engine, ids, 10)
        wait_for("the volume has all blocks", lambda: len(objects(volume)) == 10, 300)
        volume.with_name("volume.now").touch()
        for i in range(4):
            asked = [prompt(f"hangs {i}", 12), ids + prompt(f"hangs too {i}", 2)]
            for each, answer in zip(asked, engine.together([dict(ids=each, tokens=30) for each in asked])):
                lab.is_right(answer, each, 30)
        lab.until_cached(engine, prompt("hangs 0", 12), 12)
        assert len(objects(volume)) == 10, "the volume does not hang"
    finally:
        volume.with_name("volume.now").unlink(missing_ok=True)
        lab.end(engine)


@case("3")
def backlog_on_a_slow_volume_stalls_no_step(lab):
    """The volume takes nothing until a request has ended all its steps, behind a backlog of stores: had one
    step waited for it, the request would not have ended. Then it takes the backlog."""
    library = pathlib.Path(lab.program).with_name("vllm_never_answers.so")
    folder = lab.fresh("slow")
    volume = folder / "volume"
    volume.mkdir()
    connector = offloading(folder, volumes=[dict(name="shared", kind="directory", location=str(volume))],
                           g3_path=None, g3_bytes=None, fetch_limit=1)
    preloaded = dict(LD_PRELOAD=str(library), ASHLAR_TEST_NEVER_ANSWERS=str(volume))
    now = volume.with_name("volume.now")
    now.touch()
    engine = lab.start(connector, environment=preloaded)
    try:
        backlog = [prompt(f"backlog {i}", 20) for i in range(8)]
        for ids in backlog:
            lab.same(engine, ids)
        steps = engine.metric("vllm:generation_tokens")
        lab.same(engine, prompt("beside the backlog", 10), 200)
        assert engine.metric("vllm:generation_tokens") == steps + 200
        assert not objects(volume), "the volume was not slow"
        now.unlink()
        wait_for("the volume has the backlog", lambda: len(objects(volume)) >= 8 * 20, 300)
        lab.until_cached(engine, backlog[0], 20)
    finally:
        now.unlink(missing_ok=True)
        lab.end(engine)


@case("4")
def salts_are_separate(lab):
    engine = lab.tiers()
    ids = prompt("salted", 9)
    lab.same(engine, ids, salt="one")
    lab.until_cached(engine, ids, 9, salt="one")
    for salt in ("two", None):
        assert engine.reset()
        assert lab.same(engine, ids, salt=salt) == 0, f"salt {salt} has a block of salt one"
    assert engine.reset()
    assert lab.same(engine, ids, salt="one") == 9 * BLOCK


def write_adapter(folder, seed):
    """A LoRA of the model with random values, wide enough to change its answers."""
    import json

    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    sizes = dict(q_proj=(128, 128), v_proj=(128, 64))
    (folder / "adapter_config.json").write_text(json.dumps(dict(
        peft_type="LORA", task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.0, bias="none",
        target_modules=list(sizes), base_model_name_or_path="tiny")))
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for layer in range(2):
        for name, (width, out) in sizes.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            values[f"{at}.lora_A.weight"] = torch.randn(8, width, generator=generator) * 0.3
            values[f"{at}.lora_B.weight"] = torch.randn(out, 8, generator=generator) * 0.3
    save_file(values, folder / "adapter_model.safetensors")
    return str(folder)


@case("4")
def adapters_are_separate(lab):
    """LoRA: each adapter finds its own blocks and no others. Its right answer is its cold one."""
    folder = lab.fresh("adapters")
    adapters = {name: write_adapter(folder / name, seed) for name, seed in (("one", 1), ("two", 2))}
    with lab.engine(offloading(folder), enable_lora=True, max_lora_rank=8, max_loras=2,
                    loras=adapters) as engine:
        ids, right = prompt("adapters", 9), {}
        for name in ("one", "two", None):
            assert engine.reset()
            answer = engine.generate(ids, TOKENS, lora=name)
            assert answer["cached"] == 0, f"adapter {name} has blocks of {list(right)}"
            right[name] = answer["tokens"]
        assert len({tuple(tokens) for tokens in right.values()}) == 3, f"adapters change nothing: {right}"
        assert right[None] == lab.expected(ids)

        def all_cached():
            for name, tokens in right.items():
                assert engine.reset()
                answer = engine.generate(ids, TOKENS, lora=name)
                assert answer["tokens"] == tokens, f"adapter {name}, {answer['cached']} tokens cached"
                if answer["cached"] != 9 * BLOCK:
                    return False
            return True
        wait_for("every adapter finds its blocks", all_cached, 300)


@case("4")
def thinking_stripped_between_turns(lab):
    """The second turn drops the middle of the first: only what precedes it may come from our tiers."""
    engine = lab.tiers()
    asked = prompt("question", 6, 0)
    thinking = lab.expected(asked, 4 * BLOCK)
    first = engine.generate(asked, 4 * BLOCK)
    assert first["tokens"] == thinking
    visible = thinking[3 * BLOCK:]
    second = asked + visible + prompt("second question", 2)
    assert engine.reset()
    assert lab.same(engine, second) == len(asked)
    # With the thinking kept, the turn extends what was generated.
    lab.until_cached(engine, asked + thinking[:-1] + prompt("third", 1), 9)


@case("4")
def embeddings_are_separate(lab):
    """Prompts that are embeddings: each finds its own blocks, and none of another or of tokens. Its right
    answer is its cold one."""
    with lab.engine(offloading(lab.fresh("embeddings")), enable_prompt_embeds=True) as engine:
        right = {}
        for seed in (1, 2):
            assert engine.reset()
            answer = engine.generate(None, TOKENS, embeds=[seed, 9 * BLOCK + 5, 128])
            assert answer["cached"] in (0, None), f"embeddings {seed} have blocks of {list(right)}"
            right[seed] = answer["tokens"]
        assert right[1] != right[2], "embeddings change nothing"
        ids = prompt("beside embeddings", 9)
        assert lab.same(engine, ids) == 0

        def all_cached():
            for seed, tokens in right.items():
                assert engine.reset()
                before = engine.metric("vllm:external_prefix_cache_hits")
                answer = engine.generate(None, TOKENS, embeds=[seed, 9 * BLOCK + 5, 128])
                assert answer["tokens"] == tokens, f"embeddings {seed}, {answer['cached']} cached"
                if engine.metric("vllm:external_prefix_cache_hits") - before != 9 * BLOCK:
                    return False
            return True
        wait_for("embeddings find their blocks", all_cached, 300)


@case("4")
def answers_are_offloaded_or_not(lab):
    """`offload_prompt_only` both ways: a turn finds the blocks of the last answer, or the prompt's."""
    ids = prompt("first turn", 6)
    turn = ids + lab.expected(ids, 5 * BLOCK)[:-1]
    for only, expected in ((True, 6), (False, 11)):
        folder = lab.fresh(f"prompt only {only}")
        with lab.engine(offloading(folder, offload_prompt_only=only)) as engine:
            assert lab.same(engine, ids, 5 * BLOCK) == 0
            lab.until_cached(engine, ids, 6)
            if not only:  # what is asked here is computed from tokens that are stored: it stores nothing new
                wait_for("the answer is stored", lambda: engine.metric("vllm:ashlar_stored") >= 11, 300)
            assert engine.reset()
            assert lab.same(engine, turn + prompt("second turn", 1)) == expected * BLOCK, only


@case("5")
def speculative_decoding_attached(lab):
    """Drafts by n-grams of the prompt: rejected drafts must not be stored."""
    speculative = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_max=3, prompt_lookup_min=1)
    with lab.engine(offloading(lab.fresh("drafts")), speculative_config=speculative) as engine:
        ids = prompt("drafts", 4, 0) * 3 + prompt("drafts", 1)
        right = lab.expected(ids, 100)
        assert lab.same(engine, ids, 100) == 0
        assert engine.metric("vllm:spec_decode_num_draft_tokens") > 0, "nothing was drafted"
        lab.until_cached(engine, ids + right[:-1] + prompt("next turn", 1), 16)


@case("6")
def sleep_and_wake_forget_our_tiers(lab):
    """The CPU platform keeps its memory; of sleeping only the reset of caches and connector happens."""
    engine = lab.tiers()
    ids = prompt("slept", 8)
    lab.same(engine, ids)
    lab.until_cached(engine, ids, 8)
    engine.ask("call", name="sleep", arguments=dict(level=1))
    engine.ask("call", name="wake_up", arguments={})
    assert lab.same(engine, ids) == 0, "a block from before the sleep is used"
    lab.until_cached(engine, ids, 8)


@case("6")
def reset_of_the_connector_forgets_our_tiers(lab):
    engine = lab.tiers()
    ids = prompt("forgotten", 8)
    lab.same(engine, ids)
    lab.until_cached(engine, ids, 8)
    assert engine.reset(connector=True)
    assert lab.same(engine, ids) == 0, "a block is left after reset_prefix_cache(reset_connector=True)"
    lab.until_cached(engine, ids, 8)


@case("7")
def counters_by_source_add_up(lab):
    engine = lab.tiers()
    ids = prompt("counted", 10)
    lab.same(engine, ids)
    lab.until_cached(engine, ids, 10)
    names = dict(hits="vllm:external_prefix_cache_hits", loaded="vllm:kv_offload_load_bytes",
                 tokens="vllm:prompt_tokens", stored="vllm:kv_offload_store_bytes")

    def now():
        return {**{key: engine.metric(name) for key, name in names.items()},
                "external": engine.metric("vllm:prompt_tokens_by_source", source="external_kv_transfer"),
                "sources": engine.metric("vllm:prompt_tokens_by_source"),
                "cached": engine.metric("vllm:prompt_tokens_cached"),
                "places": engine.metric("vllm:prompt_tokens_cached_by_source")}
    before = now()
    assert engine.reset()
    assert lab.same(engine, ids) == 10 * BLOCK
    grown = {key: value - before[key] for key, value in now().items()}
    assert grown["hits"] == grown["external"] == 10 * BLOCK, grown
    assert grown["tokens"] == grown["sources"] == len(ids), grown
    assert grown["cached"] == grown["places"] == 10 * BLOCK, grown
    assert grown["loaded"] > 0, grown


@case("6")
def weights_updated_in_place(lab):
    """New weights in the model's folder, loaded by the running engine: after a reset of the connector no
    block of the old ones is used."""
    import shutil

    from fixtures import write_model

    folder = lab.fresh("updated")
    model, other = folder / "model", folder / "other"
    shutil.copytree(lab.model, model)
    write_model(other, initializer_range=0.15)
    with lab.engine(offloading(folder), model=model) as engine:
        ids = prompt("updated", 9)
        old = lab.expected(ids)
        lab.same(engine, ids)
        lab.until_cached(engine, ids, 9)
        for path in other.glob("*.safetensors"):
            shutil.copy(path, model)
        engine.ask("call", name="collective_rpc", arguments=dict(method="reload_weights"))
        assert engine.reset(connector=True)
        answer = engine.generate(ids, TOKENS)
        assert answer["cached"] == 0, "a block of the old weights is used"
        assert answer["tokens"] != old, "the weights were not loaded"

        def is_cached():
            assert engine.reset()
            again = engine.generate(ids, TOKENS)
            assert again["tokens"] == answer["tokens"], f"{again['cached']} tokens cached"
            return again["cached"] == 9 * BLOCK
        wait_for("blocks of the new weights are found", is_cached, 300)
