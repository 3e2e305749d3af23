"""Cases with `ashlar serve` before engines on our tiers: it hears of their blocks and routes by them."""
import contextlib

from fixtures import Client, wait_for
from lab import BLOCK, case, offloading, prompt
from run_serve import MODEL, Engine, Router, usage_of


def ask(port, ids):
    """Asks for a completion of token ids; returns the engine that answered and what it had cached."""
    import json
    body = dict(model=MODEL, prompt=ids, max_tokens=4, temperature=0, ignore_eos=True)
    status, headers, data = Client(port).post("/v1/completions", body)
    assert status == 200, f"{status} {data[:300]!r}"
    return headers.get("x-ashlar-worker"), usage_of(json.loads(data))[1]


@case("7")
def serve_routes_by_blocks_of_our_tiers(lab):
    """The engines' own caches are emptied: only our tiers have the prompts, and each engine has half of them.
    A router that did not hear of our tiers would find the engine of all of them once in 2^10 runs."""
    folder = lab.fresh("serve")
    with contextlib.ExitStack() as stack:
        engines = {}
        for name in ("a", "b"):
            (folder / name).mkdir()
            engines[name] = Engine(name, lab.model, folder, offloading(folder / name))
            stack.callback(engines[name].program.stop, 20)
        for name, engine in engines.items():
            wait_for(f"engine {name} answers", engine.is_ready)
        router = Router(lab.program, engines.values(), folder)
        stack.callback(router.program.stop, 20)
        router.wait_until_exact(engines)
        prompts = [prompt(f"served {i}", 10) for i in range(10)]
        homes = []
        for i, ids in enumerate(prompts):
            # Straight to an engine: the router learns of it by events alone.
            homes.append("ab"[i % 2])
            assert ask(engines[homes[i]].port, ids)[1] == 0
        for engine in engines.values():
            client = Client(engine.port)
            wait_for("the engine's cache is empty", lambda: b"true" in client.post("/reset_prefix_cache")[2])
            ask(engine.port, prompt(f"tells of the reset {engine.name}", 1))
        before = {name: rank["clears"] for name, rank in router.ranks().items()}
        assert set(before) == {"a", "b"}
        wait_for("the router has heard of the resets",
                 lambda: all(rank["clears"] > 0 for rank in router.ranks().values()), 300)
        found = [ask(router.port, ids) for ids in prompts]
        assert [worker for worker, _ in found] == homes, f"{found}, not {homes}"
        assert all(cached == 10 * BLOCK for _, cached in found), found
