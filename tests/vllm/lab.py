"""What a case of the conformance suite works with: models, engines, a stock of stored blocks, right answers.

A case is a function that takes the Lab and raises when the engine misbehaves; `case` gives it its name.
Cases that only need an engine with our tiers share one, with prompts of their own. The right answer to a
prompt comes from an engine without a connector, cold. The model's weights are drawn so wide that one wrong
block in a prompt changes the answer (the case `a_wrong_block_would_show` proves it).
"""
import contextlib
import pathlib
import random
import shutil

from engine import BLOCK, Engine, EngineFailed, offloading
from fixtures import wait_for, write_model

CASES = {}
TOKENS = 12  # of an answer


class Skipped(Exception):
    """The machine cannot run this case; the text says why."""


def case(section):
    """Registers a case under `section.name`."""
    def register(function):
        name = f"{section}.{function.__name__}"
        assert name not in CASES, name
        CASES[name] = function
        return function
    return register


def prompt(seed, blocks, extra=5):
    """Tokens of `blocks` whole blocks and some more, so that a hit can cover all whole blocks."""
    rng = random.Random(f"prompt {seed}")
    return [rng.randrange(3, 600) for _ in range(blocks * BLOCK + extra)]


class Lab:
    def __init__(self, folder, program, kills):
        self.folder, self.program, self.kills = folder, program, kills
        self.model = folder / "model"
        self.vocabulary = write_model(self.model, initializer_range=0.1)
        self.answers, self.engines, self.made = {}, [], {}
        self.count = 0

    # ---- engines

    def fresh(self, name):
        """A new folder."""
        self.count += 1
        made = self.folder / f"{self.count}-{name}"
        shutil.rmtree(made, ignore_errors=True)  # of an earlier run
        made.mkdir()
        return made

    def start(self, connector=None, model=None, **settings):
        """An engine, in the background; it ends with the lab."""
        self.engines.append(Engine(model or self.model, self.folder, connector, **settings))
        return self.engines[-1]

    @contextlib.contextmanager
    def engine(self, connector=None, **settings):
        """An engine for a `with`, stopped behind it."""
        engine = self.start(connector, **settings)
        try:
            yield engine.wait()
        finally:
            self.end(engine)

    def end(self, engine):
        self.engines.remove(engine)
        engine.stop()

    def once(self, name, make):
        """What `make` made the first time; an engine that died since is made again."""
        made = self.made.get(name)
        if isinstance(made, Engine) and made.program.process.poll() is not None:
            made.kill()
            self.engines.remove(made)
            made = None
        self.made[name] = made or make()
        return self.made[name]

    def reference(self):
        """The engine without a connector."""
        return self.once("reference", self.start)

    def tiers(self):
        """An engine with all our tiers and a cache of its own so small that long requests preempt others."""
        def make():
            folder = self.fresh("tiers")
            (folder / "volume").mkdir()
            volume = dict(name="shared", kind="directory", location=str(folder / "volume"))
            self.reference()  # starts beside it
            self.made["tiers connector"] = offloading(folder, volumes=[volume])
            return self.start(self.made["tiers connector"], num_gpu_blocks_override=96)
        return self.once("tiers", make)

    def close(self):
        for engine in self.engines:
            engine.kill()

    # ---- answers

    def expected(self, ids, tokens=TOKENS):
        """What an engine without a connector answers to a prompt it has not seen."""
        key = (tuple(ids), tokens)
        if key not in self.answers:
            reference = self.reference()
            reference.wait()
            assert reference.reset(), "the reference engine keeps its cache"
            answer = reference.generate(ids, tokens)
            assert answer["cached"] == 0, answer
            self.answers[key] = answer["tokens"]
        return self.answers[key]

    def same(self, engine, ids, tokens=TOKENS, **more):
        """Asks `engine`; the answer must be right. Returns how many tokens it had cached."""
        answer = engine.generate(ids, tokens, **more)
        self.is_right(answer, ids, tokens)
        return answer["cached"]

    def is_right(self, answer, ids, tokens=TOKENS):
        right = self.expected(ids, tokens)
        assert answer["tokens"] == right, f"{answer['cached']} cached: {answer['tokens']}, not {right}"

    def until_cached(self, engine, ids, blocks, **more):
        """Resets the engine's own cache and asks, until `blocks` come from our tiers: stores run behind."""
        found = []

        def is_so():
            assert engine.reset(), "the engine keeps its cache"
            found.append(self.same(engine, ids, **more))
            assert found[-1] <= blocks * BLOCK, f"{found[-1]} tokens of {blocks} blocks"
            return found[-1] == blocks * BLOCK
        try:
            wait_for(f"{blocks} blocks come from our tiers", is_so, 300)
        except AssertionError as failure:
            raise AssertionError(f"{failure}; cached were {found[-5:]}") from None

    # ---- stored blocks

    def stock(self):
        """A folder with a G3 file and a volume that an engine filled with STOCK and then left."""
        def make():
            folder = self.fresh("stock")
            (folder / "volume").mkdir()
            with self.engine(stocked(folder)) as engine:
                for seed in STOCK:
                    assert self.same(engine, prompt(seed, STOCK[seed])) == 0
                for seed, blocks in STOCK.items():
                    self.until_cached(engine, prompt(seed, blocks), blocks)
            return folder
        return self.once("stock", make)

    def copy_of_stock(self, name, without=()):
        """A copy that a case may change; `without` names `g3` or `volume`."""
        folder = self.fresh(name)
        if "g3" not in without:
            shutil.copy(g3_file(self.stock()), folder)
        if "volume" not in without:
            shutil.copytree(self.stock() / "volume", folder / "volume")
        (folder / "volume").mkdir(exist_ok=True)
        return folder


# Prompts of the stock and their whole blocks.
STOCK = {"stock one": 12, "stock two": 20, "stock three": 7}


def stocked(folder, volume=True, **changes):
    """Our tiers over a folder of stock."""
    volumes = [dict(name="shared", kind="directory", location=str(folder / "volume"))] if volume else None
    return offloading(folder, **{"volumes": volumes, "model": "stock", **changes})


def g3_file(folder):
    """The G3 file below `folder`: its name has the configuration's fingerprint."""
    [path] = folder.glob("g3.*")
    return path


def objects(folder):
    """The objects of a directory volume, without files that are being written."""
    return sorted(each for each in pathlib.Path(folder).rglob("*")
                  if each.is_file() and not each.name.startswith("."))


__all__ = ["BLOCK", "CASES", "STOCK", "TOKENS", "Engine", "EngineFailed", "Lab", "Skipped", "case", "g3_file",
           "objects", "offloading", "prompt", "stocked", "wait_for"]
