"""A conversation with a model of transformers: every turn reuses the KV of the turns before it.

    python examples/python/transformers_chat.py      # a tiny model with random weights, on the CPU or a GPU
"""

import pathlib
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as error:
    print(f"{error.name} is not installed: nothing to show")
    sys.exit(0)

import ashlar.torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(7)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, eos_token_id=None)).to(device).eval()


def ask(store, text, question):
    """One turn: what was said so far and a question, and the model's answer behind them."""
    prompt = torch.cat([text, question], dim=1)
    cache = store.cache_for(prompt)
    output = model.generate(prompt, past_key_values=cache, max_new_tokens=16, do_sample=False,
                            attention_mask=torch.ones_like(prompt))
    cache.save(output)
    tiers = ", ".join(f"{count} blocks from {tier}" for tier, count in cache.sources.items())
    print(f"{prompt.shape[1]:4} tokens, {cache.cached_tokens:4} reused: {tiers or 'nothing yet'}")
    return output


def open_store(path):
    return ashlar.torch.ModelStore(model, g1_blocks=64, g2_blocks=256, g3_blocks=1024, g3_path=path)


with tempfile.TemporaryDirectory() as folder:
    path = str(pathlib.Path(folder) / "kv.g3")
    questions = torch.arange(3, 483, device=device).reshape(4, 1, 120)
    text = torch.empty((1, 0), dtype=torch.int64, device=device)
    with open_store(path) as store:
        for question in questions[:3]:
            text = ask(store, text, question)
        store.kv.drain()
        store.kv.reset("g1")  # as if other requests had taken its place
        ask(store, text, questions[3])
    with open_store(path) as store:  # another process, later
        answer = ask(store, text, questions[3])
    prompt = torch.cat([text, questions[3]], dim=1)
    plain = model.generate(prompt, max_new_tokens=16, do_sample=False, attention_mask=torch.ones_like(prompt))
    print("the answer without a store is the same:", torch.equal(answer, plain))
