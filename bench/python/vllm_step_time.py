"""Time of a decoding step in vLLM while our tiers write: without a connector, and behind a slow volume.

    PYTHONPATH=$PWD/build/vllm-site PYTHON bench/python/vllm_step_time.py LIBRARY [--rounds N] [--after MS]

PYTHON has vLLM 0.32; scripts/vllm_site makes build/vllm-site; LIBRARY is vllm_never_answers.so of the release
build, which makes every file of the volume take MS milliseconds to open. A Llama of 92 million parameters
with random weights in bfloat16 serves on the CPU. In each round prompts are computed whose blocks go to the
volume, and behind this backlog a request decodes 100 tokens: its mean time per token is a sample. Engines
take turns, round by round, so that all see the same machine.

Exits with 1 when nothing waited for the volume while the request decoded: then nothing was measured.
"""
import argparse
import os
import pathlib
import random
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "vllm"))

from engine import Engine, offloading  # noqa: E402
from vllm_ttft import VOCABULARY, write_model  # noqa: E402


def prompt(seed, tokens):
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(tokens)]


def objects(folder):
    return sum(len(files) for _, _, files in os.walk(folder))


class Bench:
    def __init__(self, folder, library, after):
        self.folder, self.model, self.behind = folder, folder / "model", []
        write_model(self.model)
        slow, quick = folder / "slow", folder / "quick"
        self.slow = slow
        self.engines = {"without a connector": self.start(None, {})}
        for name, volume, environment in (
                ("volume that answers", quick, {}),
                (f"volume that takes {after} ms", slow, dict(
                    LD_PRELOAD=str(library), ASHLAR_TEST_NEVER_ANSWERS=str(slow),
                    ASHLAR_TEST_ANSWERS_AFTER=str(after)))):
            volume.mkdir()
            volumes = [dict(name="shared", kind="directory", location=str(volume))]
            self.engines[name] = self.start(
                offloading(folder, volumes=volumes, g3_path=None, g3_bytes=None, g2_bytes=1 << 30),
                environment)
        self.steps = {name: [] for name in self.engines}

    def start(self, connector, environment):
        engine = Engine(self.model, self.folder, connector,
                        environment=dict(OMP_NUM_THREADS="1", **environment), dtype="bfloat16",
                        load_format="dummy", num_gpu_blocks_override=1024)
        engine.wait()
        engine.generate(prompt("warm", 500), 20)
        return engine

    def round(self, number):
        for name, engine in self.engines.items():
            for i in range(2):
                engine.generate(prompt(f"backlog {number} {i}", 1500), 1)
            before = objects(self.slow)
            answer = engine.generate(prompt(f"decodes {number}", 100), 100)
            self.steps[name].append(answer["step"])
            if engine is list(self.engines.values())[-1]:
                stored = (number + 1) * 2 * (1500 // 32)
                self.behind.append(stored - before)

    def report(self):
        base = statistics.median(self.steps["without a connector"])
        print(f"{'time of a decoding step':<34} {'median':>10} {'best':>10} {'worst':>10}   / without")
        for name, times in self.steps.items():
            middle, best, worst = (1e3 * each for each in (statistics.median(times), min(times), max(times)))
            print(f"{name:<34} {middle:7.2f} ms {best:7.2f} ms {worst:7.2f} ms   {middle / 1e3 / base:6.3f}")
        print(f"vllm_step_time: blocks that waited for the slow volume when decoding began: "
              f"{min(self.behind)} to {max(self.behind)}")
        return min(self.behind) > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--after", type=int, default=200, help="milliseconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, prefix="ashlar-steps-") as scratch:
        bench = Bench(pathlib.Path(scratch), options.library.resolve(), options.after)
        try:
            for number in range(options.rounds):
                bench.round(number)
        finally:
            for engine in bench.engines.values():
                engine.kill()
        return 0 if bench.report() else 1


if __name__ == "__main__":
    sys.exit(main())
