"""Prefix reuse in transformers: real models with random weights, computed with and without ashlar.torch.

    python3 -m unittest -v tests/vllm/test_transformers.py    # with torch, transformers and ashlar

ASHLAR_TEST_DEVICE=cuda runs the models on a GPU. Weights and keys are float32. Logits that come from blocks
must equal, bit for bit, those of the library's own cache that was filled and continued with the same calls.
Against a prompt that is computed in one piece they agree within TOLERANCE, because matrix products of other
sizes round differently.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import ashlar
import ashlar.torch
import torch
import transformers
from transformers.cache_utils import DynamicCache

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("ASHLAR_TEST_DEVICE", "cpu")
BLOCK = 8
PROMPT = 45  # five blocks and five tokens
WINDOW = 12  # of sliding and chunked layers: left behind within the prompt
TOLERANCE = 2e-4
VOCABULARY = 256
torch.set_num_threads(1)  # the models are too small for more

BASE = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, head_dim=16,
            bos_token_id=1, eos_token_id=None, pad_token_id=None)


def make(config, model, seed=0, **changes):
    """A small model with random weights."""
    torch.manual_seed(seed)
    made = getattr(transformers, model)(getattr(transformers, config)(**{**BASE, **changes}))
    return made.float().eval().to(DEVICE)


def llama(**changes):
    return make("LlamaConfig", "LlamaForCausalLM", **changes)


REUSED = {
    "llama": lambda: llama(num_key_value_heads=4),
    "llama with grouped heads": llama,
    "mistral, all layers sliding": lambda: make("MistralConfig", "MistralForCausalLM", sliding_window=WINDOW),
    "gemma 3, sliding and full": lambda: make(
        "Gemma3TextConfig", "Gemma3ForCausalLM", sliding_window=WINDOW,
        layer_types=["sliding_attention"] * 3 + ["full_attention"]),
    "llama 4, chunked and full": lambda: make(
        "Llama4TextConfig", "Llama4ForCausalLM", attention_chunk_size=WINDOW, num_local_experts=2,
        intermediate_size_mlp=96, pad_token_id=0),
    "deepseek 3, keys wider than values": lambda: make(
        "DeepseekV3Config", "DeepseekV3ForCausalLM", num_key_value_heads=4, head_dim=8, kv_lora_rank=16,
        q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=4,
        n_group=1, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1),
    "gemma 4, layers of different heads": lambda: make("Gemma4TextConfig", "Gemma4ForCausalLM",
                                                        sliding_window=WINDOW, pad_token_id=0),
}


def tokens(count, seed, rows=1):
    """Token ids, [rows, count]; none is the padding token."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, count), generator=generator).to(DEVICE)


def forward(model, ids, cache, **more):
    """The logits of the ids, which follow what the cache has."""
    with torch.no_grad():
        return model(input_ids=ids, past_key_values=cache, use_cache=True, **more).logits


def library_logits(model, ids, cut):
    """Logits after the first `cut` tokens, with the library's cache: the same calls, without Ashlar."""
    cache = DynamicCache(config=model.config)
    forward(model, ids[:, :cut], cache)
    return forward(model, ids[:, cut:], cache)


def generate(model, ids, cache=None, count=12, **more):
    more.setdefault("attention_mask", torch.ones_like(ids))
    return model.generate(ids, past_key_values=cache, max_new_tokens=count, do_sample=False, **more)


def fill(store, ids, **options):
    """Computes a prompt in one piece and saves its blocks."""
    cache = store.cache_for(ids, **options)
    forward(store.model, ids[:, cache.cached_tokens:], cache)
    return cache.save()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def store(self, model, **options):
        options = {"g1_blocks": 64, "block_size": BLOCK, **options}
        store = ashlar.torch.ModelStore(model, **options)
        store.model = model
        self.addCleanup(store.close)
        return store

    def tiered(self, model, **options):
        return self.store(model, g2_blocks=64, g3_blocks=64, g3_path=str(self.folder / "kv.g3"), **options)

    def leave(self, store, *tiers):
        """Only the tiers below have the blocks; what G1 had is overwritten."""
        self.assertTrue(store.kv.drain(60))
        for tier in tiers:
            store.kv.reset(tier)
        store.memory.fill_(float("nan"))
        if DEVICE == "cuda":
            torch.cuda.synchronize()  # before other streams copy into it

    def check_logits(self, model, store, ids, tier, cut):
        cache = store.cache_for(ids)
        self.assertIsNone(cache.declined)
        self.assertEqual((cache.cached_tokens, cache.get_seq_length()), (cut, cut))
        self.assertEqual(cache.sources, {tier: cut // BLOCK})
        logits = forward(model, ids[:, cut:], cache)
        self.assertTrue(torch.equal(logits, library_logits(model, ids, cut)), f"{tier}: not bit for bit")
        whole = forward(model, ids, DynamicCache(config=model.config))[:, cut:]
        self.assertLess(float((logits - whole).abs().max()), TOLERANCE)


class ReusedPrefixes(Case):
    """Every kind of layer, from every tier."""

    def test_logits_and_tokens_are_those_of_a_recomputed_prompt(self):
        for name, made in REUSED.items():
            with self.subTest(name):
                model = made()
                path = self.folder / f"{name}.g3"
                tiers = dict(g2_blocks=64, g3_blocks=64, g3_path=str(path))
                store = self.store(model, **tiers)
                self.assertIsNone(store.declined)
                cut = PROMPT // BLOCK * BLOCK
                ids = tokens(PROMPT, 1)
                expected = generate(model, ids)
                self.assertEqual(fill(store, ids[:, :cut]), cut // BLOCK)
                self.check_logits(model, store, ids, "g1", cut)
                self.assertTrue(torch.equal(generate(model, ids, store.cache_for(ids)), expected))
                self.leave(store, "g1")
                self.check_logits(model, store, ids, "g2", cut)
                self.leave(store, "g1", "g2")
                self.check_logits(model, store, ids, "g3", cut)
                self.assertTrue(torch.equal(generate(model, ids, store.cache_for(ids)), expected))
                store.close()
                again = self.store(model, **tiers)  # as after a restart
                self.check_logits(model, again, ids, "g3", cut)
                self.assertTrue(torch.equal(generate(model, ids, again.cache_for(ids)), expected))
                again.close()

    def test_a_window_is_filled_from_blocks_wherever_a_hit_ends(self):
        model = REUSED["gemma 3, sliding and full"]()
        store = self.store(model)
        ids = tokens(6 * BLOCK, 2)
        fill(store, ids)
        for blocks in range(1, 6):
            other = torch.cat([ids[:, :blocks * BLOCK], tokens(7, 100 + blocks)], dim=1)
            with self.subTest(blocks=blocks):
                cache = store.cache_for(other)
                self.assertEqual(cache.cached_tokens, blocks * BLOCK)
                logits = forward(model, other[:, cache.cached_tokens:], cache)
                whole = forward(model, other, DynamicCache(config=model.config))
                self.assertLess(float((logits - whole[:, cache.cached_tokens:]).abs().max()), TOLERANCE)

    def test_one_token_is_left_to_compute(self):
        model = llama()
        store = self.store(model)
        ids = tokens(4 * BLOCK, 3)
        fill(store, ids)
        cache = store.cache_for(ids)
        self.assertEqual((cache.cached_tokens, cache.sources), (4 * BLOCK - 1, {"g1": 4}))
        self.assertTrue(torch.equal(generate(model, ids, cache), generate(model, ids)))
        sliding = REUSED["mistral, all layers sliding"]()
        store = self.store(sliding)
        fill(store, ids)
        self.assertTrue(torch.equal(generate(sliding, ids, store.cache_for(ids)), generate(sliding, ids)))

    def test_turns_of_a_conversation_reuse_what_was_generated(self):
        for name in ("llama with grouped heads", "gemma 3, sliding and full"):
            with self.subTest(name):
                model = REUSED[name]()
                store = self.store(model, g2_blocks=64)
                text, plain = tokens(19, 4), tokens(19, 4)
                for turn in range(4):
                    cache = store.cache_for(text)
                    # All but the last token of the turn before was computed, and its full blocks are there.
                    known = 0 if turn == 0 else (text.shape[1] - 7 - 1) // BLOCK * BLOCK
                    self.assertEqual(cache.cached_tokens, known)
                    text = generate(model, text, cache, count=10)
                    cache.save(text)
                    plain = generate(model, plain, count=10)
                    self.assertTrue(torch.equal(text, plain))
                    more = tokens(7, 50 + turn)
                    text, plain = torch.cat([text, more], dim=1), torch.cat([plain, more], dim=1)

    def test_assisted_decoding_begins_anew(self):
        # It feeds the whole prompt, whatever a cache has: behind a hit that would be a wrong answer.
        for name in ("llama with grouped heads", "mistral, all layers sliding"):
            with self.subTest(name):
                model = REUSED[name]()
                store = self.store(model)
                ids = tokens(16, 5).repeat(1, 3)  # repeats, so that looking up the prompt finds candidates
                fill(store, ids)
                expected = generate(model, ids, count=20)
                cache = store.cache_for(ids)
                self.assertEqual(cache.cached_tokens, ids.shape[1] - 1)
                found = generate(model, ids, cache, count=20, prompt_lookup_num_tokens=3)
                self.assertTrue(torch.equal(found, expected))
                self.assertEqual((cache.cached_tokens, cache.get_seq_length() < found.shape[1]), (0, True))
                self.assertEqual(cache.save(found), 2)
                cache = store.cache_for(found)
                self.assertEqual(cache.cached_tokens, 8 * BLOCK)
                self.assertTrue(torch.equal(generate(model, found, cache), generate(model, found)))

    def test_a_prompt_that_is_fed_again_is_refused(self):
        model = llama()
        store = self.store(model)
        ids = tokens(4 * BLOCK + 2, 9)
        fill(store, ids)
        with self.assertRaises(ashlar.InvalidArgument):
            generate(model, ids, store.cache_for(ids), prefill_chunk_size=8)
        with self.assertRaises(ashlar.InvalidArgument):
            forward(model, ids, store.cache_for(ids))

    def test_the_caller_may_bring_the_memory(self):
        model = llama()
        memory = torch.zeros((9, *ashlar.torch.ModelStore.g1_shape(model, BLOCK)), device=DEVICE)
        store = self.store(model, g1_blocks=0, g1_memory=memory)
        self.assertEqual((store.kv.g1.block_count, store.memory.data_ptr()), (9, memory.data_ptr()))
        ids = tokens(4 * BLOCK + 1, 6)
        self.assertEqual(fill(store, ids), 4)
        self.assertEqual(ashlar.torch.cache_for(model, ids).cached_tokens, 4 * BLOCK)
        with self.assertRaises(ashlar.InvalidArgument):
            self.store(model, g1_memory=memory.half())
        with self.assertRaises(ashlar.InvalidArgument):
            self.store(model, g1_blocks=0)

    def test_a_sequence_longer_than_g1_keeps_its_beginning(self):
        model = llama()
        store = self.store(model, g1_blocks=3)
        ids = tokens(6 * BLOCK, 7)
        self.assertEqual(fill(store, ids), 3)
        cache = store.cache_for(ids)
        self.assertEqual(cache.cached_tokens, 3 * BLOCK)
        self.assertTrue(torch.equal(generate(model, ids, cache), generate(model, ids)))

    def test_a_volume_gives_blocks_back(self):
        model = llama()
        ids = tokens(4 * BLOCK + 3, 8)
        (self.folder / "volume").mkdir()
        store = self.store(model, g2_blocks=64, g4_blocks=64)
        store.kv.register_volume("shared", "directory", str(self.folder / "volume"))
        fill(store, ids)
        self.leave(store, "g1", "g2")
        self.check_logits(model, store, ids, "g4", 4 * BLOCK)


HYBRIDS = {
    "qwen 3 next": lambda: make(
        "Qwen3NextConfig", "Qwen3NextForCausalLM", num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, shared_expert_intermediate_size=32, linear_num_value_heads=4,
        linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16),
    "lfm 2": lambda: make("Lfm2Config", "Lfm2ForCausalLM",
                          layer_types=["conv", "full_attention", "conv", "full_attention"]),
    "bamba": lambda: make("BambaConfig", "BambaForCausalLM", attn_layer_indices=[1, 3], mamba_n_heads=8,
                          mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1, pad_token_id=0),
    "jamba": lambda: make("JambaConfig", "JambaForCausalLM", attn_layer_offset=1, attn_layer_period=2,
                          num_experts=2, num_experts_per_tok=1, mamba_d_state=8, pad_token_id=0),
}
ALWAYS_REUSED = ("qwen 3 next", "lfm 2")  # the others where this version of transformers continues them


class States(Case):
    """Recurrent layers: a hit ends where a state was kept, or there is none."""

    def leave_states(self, store, *tiers):
        self.leave(store, *tiers)
        self.assertTrue(store._states.kv.drain(60))
        for tier in tiers:
            store._states.kv.reset(tier)
        store._states.memory.fill_(255)
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    def test_states_come_back_from_every_tier(self):
        for name, made in HYBRIDS.items():
            with self.subTest(name):
                model = made()
                tiers = dict(g2_blocks=64, g3_blocks=64, g3_path=str(self.folder / f"{name}.g3"))
                store = self.store(model, **tiers)
                ids = tokens(PROMPT, 41)
                cut = PROMPT // BLOCK * BLOCK
                expected = generate(model, ids)
                first = store.cache_for(ids)
                output = generate(model, ids, first)
                self.assertTrue(torch.equal(output, expected))
                if name not in ALWAYS_REUSED and store.declined is not None:
                    self.assertEqual((first.save(output), store.cache_for(ids).cached_tokens), (0, 0))
                    continue
                self.assertIsNone(store.declined)
                self.assertEqual((first.cached_tokens, first.save(output)), (0, (PROMPT + 11) // BLOCK))
                for tier, above in (("g1", ()), ("g2", ("g1",)), ("g3", ("g1", "g2"))):
                    if above:
                        self.leave_states(store, *above)
                    self.check_logits(model, store, ids, tier, cut)
                    self.assertTrue(torch.equal(generate(model, ids, store.cache_for(ids)), expected))
                store.close()
                again = self.store(model, **tiers)
                self.check_logits(model, again, ids, "g3", cut)
                turn = torch.cat([output, tokens(9, 42)], dim=1)
                cache = again.cache_for(turn)
                self.assertEqual(cache.cached_tokens, cut)
                self.assertTrue(torch.equal(generate(model, turn, cache), generate(model, turn)))
                again.close()

    def test_without_a_state_there_is_no_hit(self):
        model = HYBRIDS["lfm 2"]()
        store = self.store(model, state_blocks=1)
        ids = tokens(5 * BLOCK + 1, 43)
        generate_and_save = store.cache_for(ids)
        generate_and_save.save(generate(model, ids, generate_and_save))
        short = torch.cat([ids[:, :3 * BLOCK], tokens(6, 44)], dim=1)  # its blocks are there, no state is
        cache = store.cache_for(short)
        self.assertEqual((cache.cached_tokens, cache.sources), (0, {}))
        self.assertTrue(torch.equal(generate(model, short, cache), generate(model, short)))
        self.assertEqual(store.cache_for(ids).cached_tokens, 5 * BLOCK)
        self.assertEqual(store.cache_for(ids, salt="another").cached_tokens, 0)
        cache.save()  # takes the only place of a state
        self.assertEqual(store.cache_for(ids).cached_tokens, 3 * BLOCK)
        both = torch.cat([ids, tokens(5 * BLOCK + 1, 45)])
        self.assertEqual(store.cache_for(both).cached_tokens, 0)
        mask = torch.ones_like(ids)
        mask[0, 0] = 0
        self.assertIn("padding", store.cache_for(ids, attention_mask=mask).declined)


class Batches(Case):
    """Rows of one cache have one length."""

    def test_rows_get_the_shortest_hit(self):
        model = llama()
        store = self.store(model)
        ids = tokens(5 * BLOCK + 2, 11, rows=2)
        fill(store, ids[:1])
        fill(store, ids[1:, :2 * BLOCK])
        cache = store.cache_for(ids)
        self.assertEqual((cache.cached_tokens, cache.sources), (2 * BLOCK, {"g1": 4}))
        output = generate(model, ids, cache)
        self.assertTrue(torch.equal(output, generate(model, ids)))
        self.assertEqual(cache.save(output), 1 + 4)  # one more of the first row, four of the second
        self.assertEqual(store.cache_for(ids).cached_tokens, 5 * BLOCK)
        self.assertEqual(store.cache_for(torch.cat([ids, tokens(42, 12)])).cached_tokens, 0)

    def test_padding_on_the_left_keeps_the_names(self):
        for name in ("llama with grouped heads", "gemma 3, sliding and full"):
            with self.subTest(name):
                model = REUSED[name]()
                store = self.store(model)
                long, short = tokens(5 * BLOCK, 13), tokens(3 * BLOCK + 4, 14)
                fill(store, long)
                fill(store, short)
                pad = long.shape[1] - short.shape[1]
                ids = torch.cat([long, torch.nn.functional.pad(short, (pad, 0), value=0)])
                mask = torch.ones_like(ids)
                mask[1, :pad] = 0
                cache = store.cache_for(ids, attention_mask=mask)
                self.assertEqual(cache.cached_tokens, pad + 3 * BLOCK)
                output = generate(model, ids, cache, attention_mask=mask)
                self.assertTrue(torch.equal(output, generate(model, ids, attention_mask=mask)))
                for row, text in ((0, long), (1, short)):
                    alone = generate(model, text)
                    self.assertTrue(torch.equal(output[row, ids.shape[1]:], alone[0, text.shape[1]:]))
                cache.save(output)
                self.assertGreater(store.cache_for(output[1:, pad:]).cached_tokens, short.shape[1])

    def test_padding_that_generate_would_infer_is_padding_here(self):
        model = llama(pad_token_id=0, eos_token_id=2)
        model.generation_config.pad_token_id = 0
        store = self.store(model)
        text = tokens(3 * BLOCK, 15)
        fill(store, text)
        ids = torch.nn.functional.pad(text, (5, 0), value=0)
        cache = store.cache_for(ids)
        self.assertEqual(cache.cached_tokens, 5 + 3 * BLOCK - 1)
        output = model.generate(ids, past_key_values=cache, max_new_tokens=8, do_sample=False)
        self.assertTrue(torch.equal(output, model.generate(ids, max_new_tokens=8, do_sample=False)))

    def test_padding_elsewhere_is_a_miss(self):
        model = llama()
        store = self.store(model)
        ids = tokens(3 * BLOCK, 16)
        fill(store, ids)
        mask = torch.ones_like(ids)
        mask[0, 4] = 0
        cache = store.cache_for(ids, attention_mask=mask)
        self.assertEqual((cache.cached_tokens, cache.declined), (0, "its padding is not on the left"))
        self.assertTrue(torch.equal(generate(model, ids, cache, attention_mask=mask),
                                    generate(model, ids, attention_mask=mask)))
        self.assertEqual(cache.save(), 0)
        with self.assertRaises(ashlar.InvalidArgument):
            store.cache_for(ids, attention_mask=mask[:, 1:])

    def test_beams_save_the_prompt_alone(self):
        model = llama()
        store = self.store(model)
        ids = tokens(3 * BLOCK + 1, 17)
        cache = store.cache_for(ids.repeat(3, 1))
        output = generate(model, ids, cache, num_beams=3, count=12)
        self.assertEqual(cache.save(output), 3)
        self.assertEqual(store.cache_for(output).cached_tokens, 3 * BLOCK)
        again = store.cache_for(ids.repeat(3, 1))
        self.assertEqual(again.cached_tokens, 3 * BLOCK)
        self.assertTrue(torch.equal(generate(model, ids, again, num_beams=3, count=12), output))

    def test_what_was_not_fed_is_not_saved(self):
        model = llama()
        store = self.store(model)
        ids = tokens(3 * BLOCK, 18)
        cache = store.cache_for(ids)
        output = generate(model, ids, cache)
        for wrong in (output[:, 1:], output[:, :ids.shape[1]], torch.cat([output, output]),
                      torch.cat([ids + 1, output[:, ids.shape[1]:]], dim=1)):
            with self.assertRaises(ashlar.InvalidArgument):
                cache.save(wrong)
        with self.assertRaises(ashlar.InvalidArgument):
            store.cache_for(torch.zeros((1, 2, 3), dtype=torch.int64))
        self.assertEqual(cache.save(output), 4)


class Separation(Case):
    """What must not be shared is a miss."""

    def test_salts_separate(self):
        model = llama()
        store = self.store(model, g2_blocks=64)
        ids = tokens(3 * BLOCK + 1, 21)
        fill(store, ids, salt="tenant a")
        for salt in (None, "tenant b", ashlar.Salt(lora="tenant a")):
            self.assertEqual(store.cache_for(ids, salt=salt).cached_tokens, 0)
        for salt in ("tenant a", ashlar.Salt(tenant="tenant a")):
            self.assertEqual(store.cache_for(ids, salt=salt).cached_tokens, 3 * BLOCK)

    def test_other_models_share_nothing(self):
        (self.folder / "volume").mkdir()
        ids = tokens(3 * BLOCK + 1, 22)
        models = {"first": llama(), "other weights": llama(seed=1),
                  "other settings": llama(rms_norm_eps=1e-3), "other dtype": llama().bfloat16()}
        seen = set()
        for name, model in models.items():
            store = self.store(model, g2_blocks=64, g4_blocks=64)
            store.kv.register_volume("shared", "directory", str(self.folder / "volume"))
            seen.add(store.fingerprint)
            with self.subTest(name):
                self.assertEqual(store.cache_for(ids, timeout=60).cached_tokens, 0)
            fill(store, ids)
            self.assertTrue(store.kv.drain(60))
            store.close()
        self.assertEqual(len(seen), len(models))
        self.assertEqual(ashlar.torch.fingerprint(llama()), ashlar.torch.fingerprint(models["first"]))
        self.assertNotEqual(ashlar.torch.fingerprint(llama(), "a name"), ashlar.torch.fingerprint(llama()))

    def test_the_file_of_another_model_is_refused_or_empty(self):
        ids = tokens(3 * BLOCK + 1, 23)
        store = self.tiered(llama())
        fill(store, ids)
        self.assertTrue(store.kv.drain(60))
        store.close()
        try:
            other = self.tiered(llama(seed=1))
        except ashlar.AshlarError:
            return
        self.assertEqual(other.cache_for(ids).cached_tokens, 0)

    def test_changed_weights_end_the_hits(self):
        model = llama()
        store = self.store(model)
        ids = tokens(3 * BLOCK + 1, 24)
        fill(store, ids)
        before = store.cache_for(ids)
        self.assertEqual(before.cached_tokens, 3 * BLOCK)
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
        cache = store.cache_for(ids)
        self.assertEqual(cache.cached_tokens, 0)
        self.assertIn("weights changed", cache.declined)
        self.assertTrue(torch.equal(generate(model, ids, cache), generate(model, ids)))
        self.assertEqual((cache.save(), before.save()), (0, 0))

    def test_damaged_files_are_misses(self):
        model = llama()
        ids = tokens(4 * BLOCK + 1, 25)
        expected = generate(model, ids)
        store = self.tiered(model)
        fill(store, ids)
        self.assertTrue(store.kv.drain(60))
        names = store.kv.hasher().hash_blocks(ids[0].cpu().numpy(), BLOCK).sequence
        second = store.kv.describe(names[1])["tiers"][0]
        self.assertEqual(second["tier"], "g1")
        block = store.memory[second["block_id"]].cpu().numpy().tobytes()
        store.close()
        path = self.folder / "kv.g3"
        content = bytearray(path.read_bytes())
        at = content.find(block)
        self.assertGreaterEqual(at, 0, "the bytes of the block are not in the file")
        content[at + len(block) // 2] ^= 0x40
        path.write_bytes(content)
        again = self.tiered(model)
        cache = again.cache_for(ids)
        self.assertEqual(cache.cached_tokens, BLOCK)  # up to the damaged block
        self.assertTrue(torch.equal(generate(model, ids, cache), expected))
        self.assertEqual(again.kv.status["g3"]["damaged"], 1)


class Declined(Case):
    """Models whose prefixes cannot be reused get caches without hits, and right answers."""

    def check(self, model, words):
        store = self.store(model)
        self.assertIn(words, store.declined)
        ids = tokens(3 * BLOCK + 1, 31)
        expected = generate(model, ids)
        for _ in range(2):
            cache = store.cache_for(ids)
            self.assertEqual((cache.cached_tokens, cache.declined), (0, store.declined))
            output = generate(model, ids, cache)
            self.assertTrue(torch.equal(output, expected))
            self.assertEqual(cache.save(output), 0)
        with self.assertRaises(ashlar.Unsupported):
            ashlar.torch.ModelStore.g1_shape(model)

    def test_rotary_embeddings_that_depend_on_the_length(self):
        self.check(make("Phi3Config", "Phi3ForCausalLM", original_max_position_embeddings=64,
                        rope_scaling=dict(type="longrope", short_factor=[1.0] * 8, long_factor=[2.0] * 8)),
                   "longrope")

    def test_attention_to_later_tokens(self):
        class Bidirectional(transformers.LlamaForCausalLM):
            def forward(self, input_ids=None, past_key_values=None, **more):
                cached = 0 if past_key_values is None else past_key_values.get_seq_length()
                length = cached + input_ids.shape[1]
                more["attention_mask"] = torch.zeros((1, 1, input_ids.shape[1], length), device=DEVICE)
                return super().forward(input_ids=input_ids, past_key_values=past_key_values, **more)

        torch.manual_seed(0)
        model = Bidirectional(transformers.LlamaConfig(**BASE)).eval().to(DEVICE)
        self.check(model, "parts differ from the whole")

    def test_models_with_an_encoder_are_refused(self):
        config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
        with self.assertRaises(ashlar.Unsupported):
            ashlar.torch.ModelStore(transformers.T5ForConditionalGeneration(config), g1_blocks=4)

    def test_layers_with_attention_and_a_state(self):
        self.check(make("FalconH1Config", "FalconH1ForCausalLM", mamba_d_ssm=64, mamba_n_heads=4,
                        mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1,
                        mamba_chunk_size=16, pad_token_id=0),
                   "LinearAttentionAndFullAttentionLayer")

    def test_a_model_without_a_store_is_not_found(self):
        with self.assertRaises(ashlar.NotFound):
            ashlar.torch.cache_for(llama(), tokens(9, 1))


class Pages(unittest.TestCase):
    """The example prints what tests/python/test_examples.py promises, and the guide what it says itself."""

    def run_program(self, path):
        with tempfile.TemporaryDirectory() as folder:
            ended = subprocess.run([sys.executable, "-B", str(path)], cwd=folder, capture_output=True,
                                   text=True, timeout=300,
                                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stdout.splitlines()

    def test_the_example_reuses_every_turn(self):
        printed = self.run_program(ROOT / "examples/python/transformers_chat.py")
        promised = (ROOT / "tests/python/test_examples.py").read_text()
        self.assertEqual(len(printed), 6)
        for line in printed:
            self.assertIn(f'"{line}"', promised)

    def test_the_guide_runs(self):
        page = (ROOT / "docs/guide/transformers.md").read_text()
        program = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
        promised = re.findall(r"\)  # (.*)$", program, re.MULTILINE)
        self.assertGreaterEqual(len(promised), 4)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "guide.py"
            path.write_text(program)
            self.assertEqual(self.run_program(path), promised)


if __name__ == "__main__":
    unittest.main()
