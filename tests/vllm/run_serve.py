"""Runs two real vLLM engines behind `ashlar serve` and checks that what is claimed is what the engines find.

    run_serve.py ASHLAR_PROGRAM
    run_serve.py ASHLAR_PROGRAM --patience 1s --conversations 20

A tiny Llama with random weights, a byte-level tokenizer and a chat template is made here. Two engines with
caches smaller than the working set serve it on the CPU; their clients know only the router's address. Of
every answer, the cached tokens in the router's header are compared with those in the engine's usage: every
difference must be explained. Then one engine is cleared, one is started anew, and the journal is replayed.

The router runs with its own event_patience unless --patience says otherwise. Where cores are short, the
thread of an engine that publishes events is late by hundreds of milliseconds, and claims that were made
meanwhile are too low; so fewer of them must be right than with a patience that outlasts it.
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from fixtures import QUIET, Client, Program, free_ports, wait_for, words, write_model

BLOCK = 32
BLOCKS = 160  # of one engine's cache
MODEL = "tiny"
TURNS = 6
LEAST_EQUAL = 0.8  # of the claims, with the router's own patience
LEAST_EQUAL_PATIENT = 0.98  # with --patience


def say(text):
    print(f"test-vllm: {text}", flush=True)


class Engine:
    def __init__(self, name, model, folder, connector=None):
        self.name, self.model, self.folder, self.connector = name, model, folder, connector
        self.port, self.live, self.replay = free_ports(3)
        self.start()

    def start(self):
        events = dict(enable_kv_cache_events=True, publisher="zmq", endpoint=f"tcp://*:{self.live}",
                      replay_endpoint=f"tcp://*:{self.replay}")
        # The command `vllm serve` of the CPU package looks for metadata under another name and fails.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model),
                   "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(self.port),
                   "--dtype", "float32", "--enforce-eager", "--block-size", str(BLOCK),
                   "--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "2048",
                   "--max-num-seqs", "8", "--enable-prompt-tokens-details",
                   "--kv-events-config", json.dumps(events)]
        if self.connector:
            command += ["--kv-transfer-config", json.dumps(self.connector)]
        environment = {**os.environ, **QUIET, "VLLM_SERVER_DEV_MODE": "1"}
        self.program = Program(self.name, command, self.folder, environment)

    def is_ready(self):
        self.program.check()
        try:
            return Client(self.port).get("/health")[0] == 200
        except OSError:
            return False

    def worker(self):
        return (f"http://127.0.0.1:{self.port},events=tcp://127.0.0.1:{self.live},"
                f"replay=tcp://127.0.0.1:{self.replay},name={self.name}")


class Router:
    def __init__(self, program, engines, folder, patience=None):
        self.journal = folder / "journal"
        command = [program, "serve", "--port", "0", "--journal", str(self.journal), "--log-level", "info",
                   "--health-interval", "200ms"]
        if patience:
            command += ["--event-patience", patience]
        for engine in engines:
            command += ["--worker", engine.worker()]
        self.program = Program("serve", command, folder)
        self.port = wait_for("ashlar serve listens", self.listening, 60)

    def listening(self):
        self.program.check()
        for line in self.program.log.read_text().splitlines():
            if line.startswith("listening on http://127.0.0.1:"):
                return int(line.split(":")[2].split(",")[0])
        return None

    def ranks(self):
        """The rank of each worker, with its worker's fields, by the worker's name."""
        return {worker["name"]: {**worker, **worker["ranks"][0]}
                for worker in Client(self.port).json("/fleet")["workers"]}

    def is_exact(self, name):
        rank = self.ranks()[name]
        return rank if rank["up"] and rank["state"] == "EXACT" else None

    def wait_until_exact(self, names, limit=60):
        for name in names:
            try:
                wait_for(f"{name} is up and EXACT", lambda: self.is_exact(name), limit)
            except AssertionError as failure:
                raise AssertionError(f"{failure}: {self.ranks()[name]}") from None

    def receipt(self, decision):
        """Once it is over: a client may have its answer a moment before."""
        client = Client(self.port)
        wait_for(f"decision {decision} is over",
                 lambda: client.json(f"/decisions/{decision}")["outcome"] is not None, 60)
        return client.json(f"/decisions/{decision}")

    def metrics(self):
        status, _, body = Client(self.port).get("/metrics")
        assert status == 200
        pairs = (line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


# ---- answers


def usage_of(value):
    """Prompt and cached tokens of a JSON object of any of the APIs, or None."""
    for holder in (value, value.get("response"), value.get("message")):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
            cached = details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0
            return usage.get("prompt_tokens", usage.get("input_tokens")), cached
    return None


def text_of(value):
    """The text that an object of an answer or of a stream adds."""
    text = ""
    for choice in value.get("choices") or []:
        part = choice.get("message") or choice.get("delta") or choice
        text += part.get("content") or part.get("text") or ""
    return text


def objects_of(headers, body):
    if not headers.get("content-type", "").startswith("text/event-stream"):
        return [json.loads(body)]
    lines = [line[5:].strip() for line in body.decode().splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


Answer = collections.namedtuple("Answer", "kind path body text claimed cached state worker decision")


class Clients:
    """What all threads ask and hear."""

    def __init__(self, router, vocabulary, options):
        self.router, self.vocabulary, self.options = router, vocabulary, options
        rng = random.Random(3)
        self.systems = [f"{i}. " + words(rng, 110) for i in range(3)]
        self.prefixes = [[rng.randrange(3, vocabulary) for _ in range(150)] for _ in range(3)]
        self.texts = [words(rng, 120) for _ in range(3)]
        self.lock = threading.Lock()
        self.answers = []
        self.problems = []

    def ask(self, client, kind, path, body, headers=()):
        status, head, data = client.post(path, body, headers)
        assert status == 200, f"{kind}: {status} {data[:400]!r}"
        objects = objects_of(head, data)
        usages = [usage for usage in map(usage_of, objects) if usage]
        assert usages, f"{kind}: no usage in {data[-400:]!r}"
        claimed = head.get("x-ashlar-cached-tokens")
        answer = Answer(kind, path, body, "".join(map(text_of, objects)),
                        None if claimed is None else int(claimed), max(cached for _, cached in usages),
                        head["x-ashlar-state"], head["x-ashlar-worker"], head["x-ashlar-decision-id"])
        with self.lock:
            self.answers.append(answer)
        return answer

    def settings(self, rng, streams=True):
        body = dict(model=MODEL, max_tokens=rng.randrange(4, 20), temperature=0, ignore_eos=True)
        if streams and rng.random() < 0.4:
            body.update(stream=True, stream_options=dict(include_usage=True))
        return body

    def chat(self, client, rng, messages, **more):
        body = dict(self.settings(rng), messages=list(messages), **more)
        kind = "chat, streamed" if "stream" in body else "chat"
        return self.ask(client, kind, "/v1/chat/completions", body)

    def complete(self, client, rng, kind, prompt, **more):
        body = dict(self.settings(rng), prompt=prompt, **more)
        return self.ask(client, kind, "/v1/completions", body)

    def something_else(self, client, rng):
        kind = rng.randrange(4)
        if kind == 0:
            self.complete(client, rng, "text", rng.choice(self.texts) + " " + words(rng, 30))
        elif kind == 1:
            ids = [rng.randrange(3, self.vocabulary) for _ in range(50)]
            self.complete(client, rng, "token ids", rng.choice(self.prefixes) + ids)
        elif kind == 2:
            salt = rng.choice(("one", "two"))
            self.complete(client, rng, "salted", rng.choice(self.texts) + words(rng, 10), cache_salt=salt)
        else:  # the same again: its tokens are remembered
            prompt = rng.choice(self.texts)
            self.complete(client, rng, "text again", prompt)

    def talk(self, seed):
        rng = random.Random(seed)
        client = Client(self.router.port)
        histories = [[dict(role="system", content=rng.choice(self.systems))]
                     for _ in range(self.options.conversations)]
        order = [i for i in range(self.options.conversations) for _ in range(TURNS)]
        rng.shuffle(order)
        for i in order:
            histories[i].append(dict(role="user", content=words(rng, 30)))
            answer = self.chat(client, rng, histories[i])
            histories[i].append(dict(role="assistant", content=answer.text))
            if rng.random() < 0.6:
                self.something_else(client, rng)

    def run_thread(self, seed):
        try:
            self.talk(seed)
        except BaseException:
            with self.lock:
                self.problems.append(traceback.format_exc())

    def talk_together(self):
        threads = [threading.Thread(target=self.run_thread, args=(100 + i,))
                   for i in range(self.options.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.problems, "a client failed:\n" + self.problems[0]

    def other_apis(self):
        """Turns of /v1/responses and /v1/messages, where the engine has them."""
        rng = random.Random(5)
        client = Client(self.router.port)
        for path in ("/v1/responses", "/v1/messages"):
            system, turns = rng.choice(self.systems), []
            body = dict(model=MODEL, temperature=0)
            if path == "/v1/responses":
                body.update(max_output_tokens=8, store=False, instructions=system, input=turns)
            else:
                body.update(max_tokens=8, system=system, messages=turns)
            for turn in range(6):
                turns.append(dict(role="user", content=words(rng, 30)))
                body["stream"] = turn % 2 == 1
                if turn == 0 and client.post(path, body)[0] == 404:
                    say(f"this engine has no {path}")
                    break
                self.ask(client, path + (", streamed" if body["stream"] else ""), path, body)
                turns.append(dict(role="assistant", content=words(rng, 8)))


# ---- what must hold


def compare(router, answers, what, least):
    """Prints and checks how many claims are what the engine found."""
    unknown = [a for a in answers if a.claimed is None]
    known = [a for a in answers if a.claimed is not None]
    others = [a for a in known if a.claimed != a.cached]
    reasons = collections.Counter()
    for answer in others:
        receipt = router.receipt(answer.decision)
        outcome = receipt["outcome"]
        reasons[outcome["misroute"]] += 1
        say(f"  {answer.kind} at {answer.worker}: {answer.claimed} claimed, {answer.cached} found, of "
            f"{outcome['prompt_tokens']} ({receipt['prompt_tokens']} by {receipt.get('tokens')}): "
            f"{outcome['misroute']}, {answer.state}")
        if outcome["misroute"] == "unexplained":
            say(f"  its receipt: {json.dumps(receipt)}")
    equal = len(known) - len(others)
    say(f"{what}: {equal} of {len(known)} claims are what the engine found ({equal / len(known):.1%}), "
        f"{sum(a.cached > 0 for a in known)} with hits; others: {dict(reasons) or 'none'}")
    by_kind = collections.defaultdict(lambda: [0, 0])
    for answer in known:
        by_kind[answer.kind][0] += answer.claimed == answer.cached
        by_kind[answer.kind][1] += 1
    say("  " + ", ".join(f"{kind} {a}/{b}" for kind, (a, b) in sorted(by_kind.items())))
    assert not unknown, f"requests without tokens: {collections.Counter(a.kind for a in unknown)}"
    assert equal >= least * len(known), f"{what}: only {equal} of {len(known)} claims are right"
    for reason in ("unexplained", "forgotten"):
        assert reasons[reason] == 0, f"{what}: {reasons[reason]} differences are {reason}"
    assert reasons["other_tokens"] == 0, f"{what}: {reasons['other_tokens']} prompts had other tokens"
    return equal, len(known)


def check_traffic(router, clients):
    compare(router, clients.answers, "two engines", clients.options.least)
    states = collections.Counter(a.state for a in clients.answers)
    assert set(states) == {"EXACT"}, f"not every choice was EXACT: {dict(states)}"
    used = collections.Counter(a.worker for a in clients.answers)
    assert len(used) == 2 and min(used.values()) > len(clients.answers) / 10, f"one-sided: {dict(used)}"
    metrics = router.metrics()
    sources = {source: int(metrics[f'ashlar_serve_prompts_total{{source="{source}"}}'])
               for source in ("given", "remembered", "asked", "joined")}
    questions = int(metrics["ashlar_serve_tokenize_total"])
    say(f"prompts: {sources}, {questions} questions; requests: {dict(used)}")
    tokens = [int(metrics[f"ashlar_serve_{kind}_tokens_total"])
              for kind in ("prompt", "available", "captured", "delivered")]
    say("tokens: {} of prompts, {} available, {} captured, {} delivered".format(*tokens))
    for source, count in sources.items():
        assert count > 0, f"no prompt was {source}"
    assert metrics["ashlar_serve_prompt_differences_total"] == 0, "joined prompts were not what engines count"
    held = {name: rank["blocks"] for name, rank in router.ranks().items()}
    assert all(0 < blocks < BLOCKS for blocks in held.values()), f"more blocks than a cache has: {held}"
    computed = (tokens[0] - tokens[3]) // BLOCK
    assert computed > 2 * BLOCKS, f"{computed} blocks were computed: nothing had to be evicted"
    for name, rank in router.ranks().items():
        assert rank["lost"] == 0 and rank["restarts"] == 0, f"{name}: {rank}"


def check_models(router):
    served = Client(router.port).json("/v1/models")
    assert [entry["id"] for entry in served["data"]] == [MODEL], served


def check_texts(clients, engines):
    """At temperature 0 the router's answer is the engine's own."""
    chosen = [a for a in clients.answers if a.path in ("/v1/chat/completions", "/v1/completions")][::12]
    agreed = 0
    for answer in chosen:
        body = {key: value for key, value in answer.body.items() if not key.startswith("stream")}
        own = []
        for engine in engines:
            status, head, data = Client(engine.port).post(answer.path, body)
            assert status == 200, data[:300]
            own.append("".join(map(text_of, objects_of(head, data))))
        agreed += own[0] == own[1]
        assert answer.text in own, f"{answer.kind}: {answer.text!r} is not what engines say: {own}"
    assert agreed >= len(chosen) / 2, f"engines agree on {agreed} of {len(chosen)} texts: nothing is compared"
    say(f"{len(chosen)} texts are what the engines say directly, of {agreed} both say the same")


def new_conversation(clients, router, seed):
    """A conversation of two turns, claimed and found where it first ran: its last answer."""
    rng = random.Random(seed)
    client = Client(router.port)
    messages = [dict(role="system", content=words(rng, 100)), dict(role="user", content=words(rng, 60))]
    first = clients.chat(client, rng, messages)
    again = ask_until_claimed(clients, router, "chat again", first.path, first.body)
    assert again.worker == first.worker, again
    return again


def ask_until_claimed(clients, router, kind, path, body):
    """The first answer whose events were here before its choice: what it found was claimed."""
    client = Client(router.port)
    for _ in range(100):
        answer = clients.ask(client, kind, path, body)
        if answer.claimed == answer.cached > 0:
            return answer
        reason = router.receipt(answer.decision)["outcome"]["misroute"]
        assert answer.claimed < answer.cached and reason == "stored_meanwhile", f"{reason}: {answer}"
    raise AssertionError(f"its events never come: {answer}")


def check_clear(clients, router, engines):
    """vLLM tells a reset with its next step: one answer may be wrong, and says why."""
    cached = new_conversation(clients, router, 11)
    body, engine = cached.body, engines[cached.worker]
    clears = router.ranks()[engine.name]["clears"]
    status, _, said = Client(engine.port).post("/reset_prefix_cache")
    assert status == 200, f"/reset_prefix_cache: {status} {said[:300]}"
    client = Client(router.port)
    first = clients.ask(client, "after a clear", "/v1/chat/completions", body)
    assert first.worker == engine.name and first.cached == 0, first
    assert first.claimed > 0, f"the engine told its reset before a step: {first}"
    reason = router.receipt(first.decision)["outcome"]["misroute"]
    assert reason == "cleared", f"an answer after a reset says {reason}"
    rank = router.ranks()[engine.name]
    assert rank["state"] == "EXACT" and rank["clears"] > clears, rank
    again = ask_until_claimed(clients, router, "after a clear", "/v1/chat/completions", body)
    assert again.worker == engine.name, again
    say(f"cleared: {first.claimed} tokens claimed and none found once ({reason}), then EXACT with "
        f"{rank['blocks']} blocks")


def check_restart(clients, router, engines):
    cached = new_conversation(clients, router, 12)
    body, engine = cached.body, engines[cached.worker]
    say(f"{engine.name} starts anew")
    engine.program.stop()
    client = Client(router.port)
    for _ in range(3):  # before it is known to be down, and after
        answer = clients.ask(client, "one engine is down", "/v1/chat/completions", body)
        assert answer.worker != engine.name, answer
    wait_for(f"{engine.name} is known to be down", lambda: not router.ranks()[engine.name]["up"], 60)
    engine.start()
    wait_for(f"{engine.name} answers", engine.is_ready)
    router.wait_until_exact([engine.name])
    rank = router.ranks()[engine.name]
    assert rank["blocks"] == 0, f"a restarted engine has blocks: {rank}"
    before = len(clients.answers)
    clients.talk_together()
    answers = clients.answers[before:]
    compare(router, answers, "after a restart", clients.options.least)
    assert {a.worker for a in answers} == set(router.ranks()), "an engine gets no requests"
    assert {a.state for a in answers} == {"EXACT"}, collections.Counter(a.state for a in answers)
    rank = router.ranks()[engine.name]
    assert rank["restarts"] == 1 and rank["lost"] == 0, rank


def check_journal(program, router):
    status = router.program.stop()
    assert status == 0, f"ashlar serve ended with {status}:\n{router.program.tail()}"
    done = subprocess.run([program, "explain", str(router.journal)], capture_output=True, text=True)
    say("ashlar explain: " + done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr.strip())
    assert done.returncode == 0 and " 0 not the same" in done.stdout, done.stdout + done.stderr


def run(options, folder, stack):
    program = str(options.program.resolve())
    say("making a model")
    model = folder / "model"
    vocabulary = write_model(model)
    say("starting two engines")
    engines = []
    for name in ("a", "b"):
        engines.append(Engine(name, model, folder))
        stack.callback(lambda engine: engine.program.stop(20), engines[-1])
    began = time.monotonic()
    for engine in engines:
        wait_for(f"engine {engine.name} answers", engine.is_ready)
    say(f"they answer after {time.monotonic() - began:.0f} s")
    router = Router(program, engines, folder, options.patience)
    stack.callback(lambda: router.program.stop(20))
    router.wait_until_exact([engine.name for engine in engines])
    clients = Clients(router, vocabulary, options)
    check_models(router)
    began = time.monotonic()
    clients.talk_together()
    say(f"{len(clients.answers)} requests in {time.monotonic() - began:.0f} s")
    clients.other_apis()
    check_traffic(router, clients)
    check_texts(clients, engines)
    by_name = {engine.name: engine for engine in engines}
    check_clear(clients, router, by_name)
    check_restart(clients, router, by_name)
    check_journal(program, router)
    say(f"passed, {len(clients.answers)} requests through `ashlar serve`")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="ashlar")
    parser.add_argument("--patience", metavar="TIME", help="event_patience of the router (default: its own)")
    parser.add_argument("--threads", type=int, default=4, help="clients at a time (default %(default)s)")
    parser.add_argument("--conversations", type=int, default=6,
                        help="of each client, six turns each (default %(default)s)")
    parser.add_argument("--least", type=float, help="share of claims that must be right "
                        f"(default {LEAST_EQUAL}, with --patience {LEAST_EQUAL_PATIENT})")
    options = parser.parse_args()
    if options.least is None:
        options.least = LEAST_EQUAL_PATIENT if options.patience else LEAST_EQUAL
    return options


def main():
    options = parse_arguments()
    # Engines have sessions of their own: whoever ends this program ends them through it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, contextlib.ExitStack() as stack:
        folder = pathlib.Path(scratch)
        try:
            run(options, folder, stack)
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"---- end of {log.name}\n" + "\n".join(
                    log.read_text(errors="replace").splitlines()[-25:]), file=sys.stderr)
            raise


if __name__ == "__main__":
    main()
