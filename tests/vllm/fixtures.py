"""What the tests beside a real vLLM share: tiny models, free ports, programs that end with their children.

Nothing is fetched: weights are random and a byte-level tokenizer is trained here. The same seed gives the
same files, so engines in several processes have equal weights.
"""
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time

START_LIMIT = 600  # seconds: two engines on two busy cores

WORDS = """stone lime mortar chisel arch wall quarry dust hammer mason bench course joint ashlar rubble vault
pier lintel sill corner plumb level string line square template bed face back rough smooth fine coarse grey
white sand water clay fire kiln slate roof timber beam joist plank nail iron lead copper glass light window
door gate tower bridge river road hill valley field tree oak elm ash pine snow rain wind sun morning evening
how why when where which many much long wide deep high old new first last does do is are was were the a of in
with without for and or but not very""".split()

CHAT_TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' -%}{{ '<|im_start|>system\\nYou are a mason.<|im_end|>\\n' }}"
    "{%- endif -%}{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}")

# Engines that share a machine with others: one thread each, no core of their own, no network.
QUIET = dict(VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING",
             HF_HUB_OFFLINE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1")


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def write_tokenizer(folder):
    """Returns the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(7)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        (words(rng, 30) for _ in range(400)),
        trainers.BpeTrainer(vocab_size=640, special_tokens=special, show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>",
                                   pad_token="<|endoftext|>", extra_special_tokens=dict(start=special[1]))
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return tokenizer.get_vocab_size()


def write_model(folder, **changes):
    """A Llama of two layers in float32 with its tokenizer; returns the size of its vocabulary."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = write_tokenizer(folder)
    torch.manual_seed(7)
    settings = dict(vocab_size=vocabulary, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=4096,
                    tie_word_embeddings=False, bos_token_id=None, pad_token_id=0, eos_token_id=2)
    LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).to(torch.float32).save_pretrained(folder)
    return vocabulary


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for(what, is_so, limit=START_LIMIT):
    """Asks until it is so; returns what it then is."""
    last = time.monotonic() + limit
    while True:
        found = is_so()
        if found:
            return found
        assert time.monotonic() < last, f"after {limit} s still not: {what}"
        time.sleep(0.1)


class Client:
    """One connection, kept open."""

    def __init__(self, port):
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def request(self, method, path, body=None, headers=()):
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **dict(headers)}
        try:
            self.connection.request(method, path, data, sent)
            response = self.connection.getresponse()
            return response.status, response.headers, response.read()
        except BaseException:
            self.connection.close()
            raise

    def post(self, path, body=None, headers=()):
        return self.request("POST", path, body, headers)

    def get(self, path):
        return self.request("GET", path)

    def json(self, path):
        status, _, body = self.get(path)
        assert status == 200, f"GET {path}: {status} {body[:300]}"
        return json.loads(body)


class Program:
    """A process with its output in a file, ended with all its children."""

    def __init__(self, name, command, folder, environment=None, **more):
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder,
                                            env=environment, start_new_session=True, **more)

    def check(self):
        status = self.process.poll()
        assert status is None, f"{self.name} ended with {status}:\n{self.tail()}"

    def tail(self, lines=30):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self):
        """SIGKILL to the process and all of its session, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, limit=60):
        status = None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(timeout=limit)
        # What is left of its group: workers of an engine that did not hear it.
        self.kill()
        return status
