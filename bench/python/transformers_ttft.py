"""Time to first token of a transformers model: a prompt recomputed, and found in G1, G2 and G3.

usage: transformers_ttft.py [--model small|llama8b] [--device cpu|cuda] [--lengths N,N,...] [--fresh N]
                            [--folder FOLDER] [--repeats N] [--json FILE] [--check]

The model has random weights: "llama8b" has the shape of Llama 3.1 8B (bfloat16, 16 GB), "small" 25 M
parameters in float32. By default the device is cuda with llama8b where there is one. Of every prompt all but
the last --fresh tokens were seen before; the time is that of cache_for() and generate() up to one token, the
least of --repeats. Logits of every tier must equal bit for bit those of the cache that was saved.

"onboarding" is KvBlockManager.onboard() alone, from G2 into G1, beside one contiguous copy of as many bytes
from page-locked memory (on the CPU: from any memory).

--check fails unless, at the longest prompt, G2 is at least 8 times as fast as recomputing and onboarding
reaches 0.85 of the contiguous copy. G3 reads files of --folder, which the system may have in its memory.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import ashlar.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LEAST_SPEEDUP = 8.0
LEAST_BANDWIDTH = 0.85
BLOCK = 16
SHAPES = {
    "llama8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                    num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                    max_position_embeddings=131072, rms_norm_eps=1e-5,
                    rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0,
                                         low_freq_factor=1.0, high_freq_factor=4.0,
                                         original_max_position_embeddings=8192)),
    "small": dict(vocab_size=4096, hidden_size=512, intermediate_size=1536, num_hidden_layers=6,
                  num_attention_heads=8, num_key_value_heads=2, head_dim=64, max_position_embeddings=8192),
}


def make_model(name, device):
    """The model, with weights made up on the device."""
    dtype = torch.bfloat16 if name == "llama8b" else torch.float32
    torch.manual_seed(1)
    config = LlamaConfig(**SHAPES[name], bos_token_id=1, eos_token_id=None, pad_token_id=None)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model.to(dtype).eval()


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def least(action, device, repeats, before=lambda: None):
    """The least time of an action, and its last result."""
    times, result = [], None
    for _ in range(repeats):
        result = None  # frees its memory first
        before()
        wait(device)
        start = time.perf_counter()
        result = action()
        wait(device)
        times.append(time.perf_counter() - start)
    return min(times), result


def first_token(model, prompt, cache=None):
    """Logits of the first token, as generate() gets them."""
    out = model.generate(prompt, past_key_values=cache, max_new_tokens=1, do_sample=False,
                         attention_mask=torch.ones_like(prompt), output_logits=True,
                         return_dict_in_generate=True)
    return out.logits[0].float().cpu()


def contiguous_copy(size, device, repeats):
    """Seconds that one copy of so many bytes takes, from host memory to where G1 is."""
    source = torch.ones(size, dtype=torch.uint8)
    if device == "cuda":
        source = source.pin_memory()
    target = torch.empty(size, dtype=torch.uint8, device=device)
    seconds, _ = least(lambda: target.copy_(source, non_blocking=True), device, repeats + 1)
    return seconds


def measure(model, store, length, fresh, device, repeats):
    """What one prompt takes, by name."""
    kv = store.kv
    generator = torch.Generator().manual_seed(length)
    prompt = torch.randint(3, model.config.vocab_size, (1, length), generator=generator).to(device)
    known = (length - fresh) // BLOCK * BLOCK
    row = {"tokens": length, "reused": known}
    with torch.no_grad():
        row["recompute"], recomputed = least(lambda: first_token(model, prompt), device, repeats)
        cache = store.cache_for(prompt[:, :known])
        model(input_ids=prompt[:, :known], past_key_values=cache, logits_to_keep=1)
        wait(device)
        start = time.perf_counter()
        saved = cache.save()
        row["save"] = time.perf_counter() - start
        if saved != known // BLOCK:
            sys.exit(f"only {saved} of {known // BLOCK} blocks were saved")
        same = first_token(model, prompt, cache)  # with the very keys that were saved
        del cache

        def reuse():
            reused = store.cache_for(prompt)
            return first_token(model, prompt, reused), reused.sources, reused.cached_tokens

        for tier, above in (("g1", ()), ("g2", ("g1",)), ("g3", ("g1", "g2"))):
            def evict():
                kv.drain()
                for one in above:
                    kv.reset(one)

            row[tier], (logits, sources, hit) = least(reuse, device, repeats, evict)
            if sources != {tier: known // BLOCK} or hit != known:
                sys.exit(f"{tier}: {hit} of {known} tokens were found, in {sources}")
            if not torch.equal(logits, same):
                sys.exit(f"{tier}: the logits differ by {(logits - same).abs().max():.3g}")
            if tier == "g1":
                row["difference"] = float((logits - recomputed).abs().max() / recomputed.abs().max())
        names = kv.hasher().hash_blocks(prompt[0, :known].cpu().numpy(), BLOCK)

        def evict_g1():
            kv.drain()
            kv.reset("g1")

        seconds, table = least(lambda: kv.onboard(names), device, repeats, evict_g1)
        table.release()
    size = known // BLOCK * store.memory[0].numel() * store.memory.element_size()
    row["onboard_gbs"] = size / seconds / 1e9
    row["copy_gbs"] = size / contiguous_copy(size, device, repeats) / 1e9
    row["bytes"] = size
    kv.drain()
    for tier in ("g1", "g2", "g3"):
        kv.reset(tier)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--model", choices=tuple(SHAPES))
    parser.add_argument("--lengths")
    parser.add_argument("--fresh", type=int, default=32)
    parser.add_argument("--folder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    shape = given.model or ("llama8b" if device == "cuda" else "small")
    default = "4096,16384,32768" if shape == "llama8b" else "512,2048,4096"
    lengths = sorted(int(part) for part in (given.lengths or default).split(","))
    start = time.perf_counter()
    model = make_model(shape, device)
    parameters = sum(value.numel() for value in model.parameters())
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{shape}: {parameters / 1e6:.0f} M parameters, {model.dtype}, {device} ({where}), "
          f"built in {time.perf_counter() - start:.1f} s")
    blocks = lengths[-1] // BLOCK + 8
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        start = time.perf_counter()
        store = ashlar.torch.ModelStore(model, g1_blocks=blocks, block_size=BLOCK, g2_blocks=blocks,
                                        g3_blocks=blocks, g3_path=str(pathlib.Path(folder) / "kv.g3"),
                                        survive_power_loss=False)
        if store.declined is not None:
            sys.exit(f"the model is declined: {store.declined}")
        block_bytes = store.memory[0].numel() * store.memory.element_size()
        print(f"store: {blocks} blocks of {block_bytes / 1e6:.2f} MB "
              f"in each of G1, G2 and G3, made in {time.perf_counter() - start:.1f} s")
        first_token(model, torch.arange(3, 259, device=device)[None])  # loads the kernels
        print("  tokens  reused  recompute        G1            G2            G3           save   "
              "onboarding / contiguous GB/s")
        rows = []
        with store:
            for length in lengths:
                row = measure(model, store, length, given.fresh, device, given.repeats)
                rows.append(row)
                tiers = "  ".join(f"{row[tier] * 1e3:7.1f} {row['recompute'] / row[tier]:4.1f}x"
                                  for tier in ("g1", "g2", "g3"))
                print(f"{length:8} {row['reused']:7} {row['recompute'] * 1e3:9.1f}  {tiers}  "
                      f"{row['save'] * 1e3:7.1f} ms  {row['onboard_gbs']:.1f} / {row['copy_gbs']:.1f} = "
                      f"{row['onboard_gbs'] / row['copy_gbs']:.2f}", flush=True)
    print(f"milliseconds to the first token; logits of all tiers are equal bit for bit, and differ from the "
          f"recomputed ones by {max(row['difference'] for row in rows):.1g} of the largest")
    if given.json:
        report = {"model": shape, "device": where, "rows": rows}
        pathlib.Path(given.json).write_text(json.dumps(report, indent=1))
    last = rows[-1]
    speedup, share = last["recompute"] / last["g2"], last["onboard_gbs"] / last["copy_gbs"]
    good = speedup >= LEAST_SPEEDUP and share >= LEAST_BANDWIDTH
    print(f"at {last['tokens']} tokens: G2 {speedup:.1f}x (goal {LEAST_SPEEDUP:.0f}x), onboarding "
          f"{share:.2f} of a contiguous copy (goal {LEAST_BANDWIDTH}): "
          f"{'reached' if good else 'not reached'}")
    return 0 if good or not given.check else 1


if __name__ == "__main__":
    sys.exit(main())
