"""Time to first token of a long prompt in vLLM: recomputed, and from each of our tiers.

    PYTHONPATH=$PWD/build/vllm-site PYTHON bench/python/vllm_ttft.py [--prompts N] [--tokens N]
        [--keep FOLDER] [--lmcache FOLDER] [--g2]

PYTHON has vLLM 0.32; scripts/vllm_site makes build/vllm-site. A Llama of 92 million parameters with random
weights in bfloat16 serves on the CPU. Each row is the median over N prompts of vLLM's own first-token
latency. Beside it stand an engine without a connector (recomputed, local hit), vLLM's ExampleConnector, which
keeps files, and LMCache's host memory where --lmcache names a folder that has the package (pip install
--target) and it starts. --g2 leaves out all rows but those of the engine and of G2.

G2 is measured behind AshlarConnector, which loads within the step that computes, and behind vLLM's own
OffloadingConnector, which loads between steps. Exits with 1 when a hit from G2 by the first is not 30 times
faster than recomputing. Both have a bound: the engine's own hit, which computes the rest of the prompt too.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "vllm"))

from engine import BLOCK, Engine, checking, offloading  # noqa: E402
from fixtures import free_ports, wait_for  # noqa: E402

LEAST_RATIO = 30
VOCABULARY = 28000


def write_model(folder):
    """A configuration is enough: the weights are made up by vLLM."""
    folder.mkdir()
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", torch_dtype="bfloat16", vocab_size=VOCABULARY,
        hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=8192, rms_norm_eps=1e-5,
        rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
    (folder / "config.json").write_text(json.dumps(config))


class Bench:
    def __init__(self, folder, count, tokens, lmcache=None, brief=False):
        self.folder, self.rows, self.lmcache, self.brief = folder, {}, lmcache, brief
        self.model = folder / "model"
        write_model(self.model)
        rng = random.Random(1)
        self.warm, *self.prompts = [[rng.randrange(3, VOCABULARY) for _ in range(tokens)]
                                    for _ in range(count + 1)]
        self.cached = (tokens - 1) // BLOCK * BLOCK

    def start(self, connector=None, environment=(), **settings):
        """An engine that has answered once: the first request pays for what is made lazily."""
        cores = str(len(os.sched_getaffinity(0)))
        engine = Engine(self.model, self.folder, connector,
                        environment=dict(OMP_NUM_THREADS=cores, **dict(environment)),
                        dtype="bfloat16", load_format="dummy", max_model_len=4096,
                        num_gpu_blocks_override=1024, **settings)
        engine.wait()
        engine.generate(self.warm, 4)
        return engine

    def ask(self, engine, row, cached):
        """Every prompt once, one after another; `cached` tokens of each must be hits."""
        for ids in self.prompts:
            answer = engine.generate(ids, 4)
            assert answer["cached"] == cached, f"{row}: {answer['cached']} of {cached} tokens were cached"
            self.rows.setdefault(row, []).append(answer["first"])

    def until_stored(self, engine, hits):
        """Stores run behind the answers."""
        def is_stored():
            assert engine.reset()
            return all(engine.generate(ids, 1)["cached"] == hits for ids in self.prompts)
        wait_for("all prompts are stored", is_stored, 120)

    def from_tier(self, row, connector):
        engine = self.start(connector)
        self.ask(engine, row, self.cached)
        engine.stop()

    def of_the_engine(self):
        engine = self.start()
        self.ask(engine, "recomputed", 0)
        for _ in range(2):
            self.ask(engine, "local hit", self.cached)
        engine.stop()

    def of_g2(self, row, connector):
        engine = self.start(connector)
        self.until_stored(engine, self.cached)
        for _ in range(2):
            assert engine.reset()
            self.ask(engine, row, self.cached)
        engine.stop()

    def run(self):
        only_g2 = dict(g2_bytes=1 << 30, g3_path=None, g3_bytes=None)
        self.of_the_engine()
        self.of_g2("G2", checking(self.folder, **only_g2))
        self.of_g2("G2, OffloadingConnector", offloading(self.folder, **only_g2))
        if self.brief:
            return
        volume = self.folder / "volume"
        volume.mkdir()
        volumes = [dict(name="shared", kind="directory", location=str(volume))]
        sizes = dict(g2_bytes=1 << 30, g3_bytes=2 << 30)
        address = f"127.0.0.1:{free_ports(1)[0]}"
        engine = self.start(offloading(self.folder, volumes=volumes, remote=dict(listen=address), **sizes))
        self.ask(engine, "recomputed, connector attached", 0)
        self.until_stored(engine, self.cached)
        self.from_tier("another engine's G2 (loopback)", offloading(
            self.folder, remote=dict(listen="127.0.0.1:0", peers=[address]), **only_g2))
        engine.stop()
        self.from_tier("G3, after a restart", offloading(self.folder, **sizes))
        self.from_tier("volume, another engine", offloading(self.folder, volumes=volumes, **only_g2))

        store = self.folder / "example"
        engine = self.start(dict(kv_connector="ExampleConnector", kv_role="kv_both",
                                 kv_connector_extra_config=dict(shared_storage_path=str(store))),
                            disable_hybrid_kv_cache_manager=True)
        for ids in self.prompts:
            engine.generate(ids, 4)
        assert engine.reset()
        self.ask(engine, "ExampleConnector (files)", self.cached)
        engine.stop()
        shutil.rmtree(store)
        if self.lmcache:
            self.beside_lmcache()

    def beside_lmcache(self):
        """Its chunks are of 256 tokens, so a hit is a little shorter than ours."""
        paths = os.pathsep.join([str(self.lmcache.resolve()), os.environ.get("PYTHONPATH", "")])
        settings = dict(PYTHONPATH=paths, LMCACHE_CHUNK_SIZE="256", LMCACHE_LOCAL_CPU="True",
                        LMCACHE_MAX_LOCAL_CPU_SIZE="2", LMCACHE_TRACK_USAGE="false")
        connector = dict(kv_connector="LMCacheConnectorV1", kv_role="kv_both")
        engine = None
        try:
            engine = self.start(connector, settings, disable_hybrid_kv_cache_manager=True)
            self.ask(engine, "recomputed, LMCache attached", 0)
            assert engine.reset()
            found = engine.generate(self.prompts[0], 4)["cached"]
            assert found > 0, "it finds nothing that it stored"
            assert engine.reset()
            self.ask(engine, "LMCache (host memory)", found)
        except (AssertionError, OSError) as failure:
            print(f"vllm_ttft: LMCache does not serve here: {str(failure).strip().splitlines()[-1]}")
        finally:
            if engine is not None:
                engine.kill()

    def report(self):
        medians = {row: statistics.median(times) for row, times in self.rows.items()}
        base = medians["recomputed"]
        print(f"{'time to first token':<34} {'median':>10} {'best':>10} {'worst':>10}   recomputed / this")
        for row, times in self.rows.items():
            middle, best, worst = (1e3 * each for each in (medians[row], min(times), max(times)))
            print(f"{row:<34} {middle:7.1f} ms {best:7.1f} ms {worst:7.1f} ms   {base / medians[row]:6.1f}")
        ratio = base / medians["G2"]
        print(f"vllm_ttft: G2 is {ratio:.1f} times faster than recomputing; {LEAST_RATIO} are asked for; the "
              f"engine's own hit is {base / medians['local hit']:.1f} times faster")
        return ratio >= LEAST_RATIO


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=3500)
    parser.add_argument("--lmcache", type=pathlib.Path, help="a folder with LMCache and what it needs")
    parser.add_argument("--g2", action="store_true", help="the engine and G2 alone")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for models, logs and stores, kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, prefix="ashlar-ttft-") as scratch:
        folder = options.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder, options.prompts, options.tokens, options.lmcache, options.g2)
        bench.run()
        return 0 if bench.report() else 1


if __name__ == "__main__":
    sys.exit(main())
