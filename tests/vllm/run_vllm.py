"""Runs the real vLLM with KV events and checks that Ashlar knows what its cache holds.

    run_vllm.py VLLM_CHECK

A tiny Llama with random weights serves conversations from a cache so small that it evicts. The program
VLLM_CHECK joins late and hears the engine only over its sockets. Before each request it is asked how many
blocks of the prompt the engine holds; the engine then must report as many cached tokens. At the end the
engine restarts on the same ports.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import traceback

import psutil  # vLLM needs it too

from fixtures import free_ports

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

BLOCK = 32
BLOCKS = 100  # of the whole cache
VOCABULARY = 1024


def write_model(folder):
    """A configuration is enough: the weights are made up by vLLM."""
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", torch_dtype="bfloat16", vocab_size=VOCABULARY,
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64, max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu",
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
    (folder / "config.json").write_text(json.dumps(config))


class Engine:
    def __init__(self, model, live, replay):
        from vllm import LLM, SamplingParams
        from vllm.config import KVEventsConfig

        events = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=f"tcp://*:{live}",
                                replay_endpoint=f"tcp://*:{replay}", topic="kv")
        self.llm = LLM(str(model), load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=True,
                       block_size=BLOCK, max_model_len=2048, enforce_eager=True, max_num_seqs=4,
                       num_gpu_blocks_override=BLOCKS, kv_events_config=events)
        self.sampling = lambda tokens: SamplingParams(max_tokens=tokens, temperature=0, detokenize=False,
                                                      ignore_eos=True)

    def generate(self, prompts, tokens):
        """Outputs and cached tokens of each prompt."""
        results = self.llm.generate([{"prompt_token_ids": p} for p in prompts], self.sampling(tokens),
                                    use_tqdm=False)
        return [(list(r.outputs[0].token_ids), r.num_cached_tokens) for r in results]

    def stop(self):
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm


class Checker:
    def __init__(self, program, live, replay):
        self.process = subprocess.Popen(
            [program, f"tcp://127.0.0.1:{live}", f"tcp://127.0.0.1:{replay}", str(BLOCK)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n", "vllm_check did not start"

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "vllm_check ended"
        return answer.split()

    def depth(self, prompt):
        return int(self.ask("query " + " ".join(map(str, prompt)))[1])

    def counters(self):
        words = self.ask("counters")
        return dict(zip(words[::2], map(int, words[1::2])))

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0


class Run:
    def __init__(self, engine, checker, seed):
        self.engine, self.checker = engine, checker
        self.random = random.Random(seed)
        self.checked = self.with_hits = self.partial = 0

    def tokens(self, count):
        return [self.random.randrange(3, VOCABULARY) for _ in range(count)]

    def unchecked(self, prompt, tokens=8):
        return self.engine.generate([prompt], tokens)[0][0]

    def request(self, prompt, tokens=8):
        """Asks first, then lets the engine say what was true."""
        depth = self.checker.depth(prompt)
        whole = (len(prompt) - 1) // BLOCK
        [(output, cached)] = self.engine.generate([prompt], tokens)
        expected = min(depth, whole) * BLOCK
        said = f"prompt of {len(prompt)}: vLLM had {cached} tokens, Ashlar expected {expected}"
        assert cached == expected, said
        self.checked += 1
        self.with_hits += cached > 0
        self.partial += 0 < cached < whole * BLOCK
        return output

    def conversations(self, count, turns):
        system = self.tokens(160)
        histories = [system + self.tokens(60 + 40 * i) for i in range(count)]
        for _ in range(turns):
            for i in range(count):
                output = self.request(histories[i], 40)
                histories[i] = histories[i] + output + self.tokens(50)
        return histories

    def together(self, count):
        """Requests that run at once evict each other's blocks and store equal ones twice."""
        shared = self.tokens(200)
        self.engine.generate([shared + self.tokens(100 * (i % 2)) for i in range(count)], 60)
        self.request(shared, 4)


def main():
    program = sys.argv[1]
    live, replay = free_ports(2)
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder)
        write_model(model)
        print("test-vllm: starting vLLM", flush=True)
        engine = Engine(model, live, replay)
        early = random.Random(1)
        first = [early.randrange(3, VOCABULARY) for _ in range(700)]
        engine.generate([first], 20)
        engine.generate([first[:320] + first[:100]], 20)

        checker = Checker(program, live, replay)
        run = Run(engine, checker, seed=2)
        run.request(first, 4)
        histories = run.conversations(count=4, turns=5)
        for history in histories:
            run.request(history[:300], 4)
        for _ in range(3):
            run.together(4)
        run.request(run.tokens(1900), 4)
        for history in histories:
            run.request(history, 4)
        assert engine.llm.reset_prefix_cache()
        run.unchecked(run.tokens(100))  # vLLM tells a reset with its next step
        run.request(histories[0], 4)
        run.request(histories[0], 4)
        counters = checker.counters()
        print(f"test-vllm: {run.checked} requests, {run.with_hits} with hits, {run.partial} of these partial")
        print(f"test-vllm: {counters}", flush=True)
        assert run.with_hits > 10 and run.partial > 3, "the scenario does not hit its cache"
        assert counters["source_replays"] > 0 and counters["removed"] > 100 and counters["clears"] > 0
        for bad in ("lost", "undecodable", "resyncs", "restarts", "collisions", "refused", "damaged"):
            assert counters[bad] == 0, f"{bad}: {counters[bad]}"

        print("test-vllm: starting vLLM anew", flush=True)
        engine.stop()
        engine = run.engine = Engine(model, live, replay)
        run.unchecked(run.tokens(100))  # an engine that has not said anything yet looks like one that is idle
        run.request(histories[1], 4)
        run.conversations(count=2, turns=3)
        counters = checker.counters()
        assert counters["restarts"] == 1 and counters["lost"] == 0, counters
        checker.stop()
        engine.stop()
    print(f"test-vllm: passed, {run.checked} requests agreed")


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        # Engines that are left alone would hold the interpreter for ever.
        traceback.print_exc()
        for child in psutil.Process().children(recursive=True):
            child.kill()
        sys.stdout.flush()
        os._exit(1)
