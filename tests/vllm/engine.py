"""An engine of the tests: a process that hosts vLLM, and what is asked of it.

Starting takes half a minute, so an engine starts in the background: `Engine(...)` returns at once and the
first question waits. Every engine is its own session; `kill` ends all its processes at once.
"""
import json
import os
import pathlib
import socket
import sys

from fixtures import QUIET, START_LIMIT, Program

HERE = pathlib.Path(__file__).resolve().parent
BLOCK = 32


class EngineFailed(AssertionError):
    """The engine, or a question to it, failed; the text is its error."""


def offloading(folder, **changes):
    """The kv_transfer_config of our tiers; `None` removes an entry."""
    extra = dict(spec_name="AshlarOffloadingSpec", spec_module_path="ashlar.vllm", g2_bytes=64 << 20,
                 g3_path=str(folder / "g3"), g3_bytes=128 << 20, offload_prompt_only=False,
                 self_describing_kv_events=True)
    extra.update(changes)
    return dict(kv_connector="OffloadingConnector", kv_role="kv_both",
                kv_connector_extra_config={k: v for k, v in extra.items() if v is not None})


def checking(folder, policy="recompute", **changes):
    """The kv_transfer_config of AshlarConnector over our tiers."""
    config = offloading(folder, **{"spec_name": None, "spec_module_path": None, **changes})
    return {**config, "kv_connector": "AshlarConnector", "kv_connector_module_path": "ashlar.vllm_connector",
            "kv_load_failure_policy": policy}


class Engine:
    """`settings` go to vllm.LLM; `connector` is a kv_transfer_config or None."""

    started = 0

    def __init__(self, model, folder, connector=None, environment=(), prefix=(), **settings):
        Engine.started += 1
        arguments = dict(
            model=str(model), dtype="float32", skip_tokenizer_init=True, enable_prefix_caching=True,
            block_size=BLOCK, max_model_len=2048, enforce_eager=True, max_num_seqs=8,
            num_gpu_blocks_override=512, disable_log_stats=False, seed=0)
        if connector:
            arguments["kv_transfer_config"] = connector
        arguments.update(settings)
        ours, theirs = socket.socketpair()
        self.lines = ours.makefile("rw")
        ours.settimeout(START_LIMIT)
        command = [*prefix, sys.executable, str(HERE / "engine_process.py"), str(theirs.fileno()),
                   json.dumps(arguments)]
        self.program = Program(f"engine-{Engine.started}", command, folder,
                               {**os.environ, **QUIET, **dict(environment)}, pass_fds=[theirs.fileno()])
        theirs.close()
        self.socket, self.is_ready = ours, False

    def wait(self):
        """Until it has started. Errors: EngineFailed with the reason."""
        if not self.is_ready:
            self.hear()
            self.is_ready = True
        return self

    def hear(self):
        line = self.lines.readline()
        if not line:
            raise EngineFailed(f"{self.program.name} ended:\n{self.program.tail(60)}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(answer["error"])
        return answer["ok"]

    def send(self, op, **arguments):
        """Asks without waiting for the answer; `hear` returns it."""
        self.wait()
        self.lines.write(json.dumps(dict(op=op, **arguments)) + "\n")
        self.lines.flush()

    def ask(self, op, **arguments):
        self.send(op, **arguments)
        return self.hear()

    def generate(self, ids, tokens=8, **more):
        """The answer to one prompt: `tokens`, `cached`, `first` (seconds to the first token)."""
        asked = dict(tokens=tokens, **more) if ids is None else dict(ids=ids, tokens=tokens, **more)
        return self.ask("generate", requests=[asked])[0]

    def together(self, requests):
        return self.ask("generate", requests=requests)

    def reset(self, connector=False):
        return self.ask("reset", connector=connector)

    def metric(self, name, **labels):
        """The sum of a metric over the series that carry these labels."""
        return sum(each["value"] for each in self.ask("metrics")
                   if each["name"] == name and labels.items() <= each["labels"].items())

    def log(self):
        return self.program.log.read_text(errors="replace")

    def stop(self):
        """As a user would: the engine is told to end, then its process."""
        try:
            if self.program.process.poll() is None and self.is_ready:
                self.ask("stop")
        finally:
            self.socket.close()
            self.program.stop()

    def kill(self):
        self.program.kill()
        self.socket.close()
