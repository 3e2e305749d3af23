"""The commands and settings of docs/guide/vllm.md, taken from the page and run."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

from fixtures import QUIET, Client, Program, free_ports, wait_for
from lab import BLOCK, case, prompt

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guide" / "vllm.md"
# What a small machine changes in them; each must be in the page.
CHANGES = {"/data/kv": "{folder}/kv", "8GiB": "64MiB", "100GiB": "128MiB"}


def snippets():
    """The blocks of code in the page, in order."""
    return re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def the(blocks, part):
    """The block that has this text."""
    [found] = [each for each in blocks if part in each]
    return found


def small(text, folder):
    for given, instead in CHANGES.items():
        text = text.replace(given, instead.format(folder=folder))
    return text


@contextlib.contextmanager
def serving(lab, folder, flags, port):
    """`vllm serve` as the guide says for the package for CPUs, which has no working one."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags, "--host", "127.0.0.1",
               "--dtype", "float32", "--enforce-eager", "--num-gpu-blocks-override", "256",
               "--max-model-len", "2048", "--block-size", str(BLOCK)]
    program = Program("guide", command, folder, {**os.environ, **QUIET, "VLLM_SERVER_DEV_MODE": "1"})

    def is_ready():
        program.check()
        try:
            return Client(port).get("/health")[0] == 200
        except OSError:
            return False
    try:
        wait_for("the engine of the guide answers", is_ready)
        yield program
    finally:
        program.stop(30)


@case("1")
def guide_as_written(lab):
    """From the start of the engine to `host` in its metrics, then a restart: `disk`."""
    blocks, folder, port = snippets(), lab.fresh("guide"), free_ports(1)[0]
    (folder / "data").mkdir()
    assert all(any(each in block for block in blocks) for each in CHANGES), "CHANGES are not in the page"
    # `vllm serve MODEL --port … --kv-transfer-config '{…}'`, as a shell would read it.
    shell = small(the(blocks, "vllm serve MODEL"), folder).replace("vllm serve", "printf '%s\\0'")
    said = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout
    model, *flags = said.rstrip("\0").split("\0")
    assert model == "MODEL" and flags[:2] == ["--port", "8000"], flags
    flags = ["--model", str(lab.model), "--port", str(port), *flags[2:]]
    ids = prompt("guide", 20)
    (folder / "request.json").write_text(json.dumps(dict(
        model=str(lab.model), prompt=ids, max_tokens=4, temperature=0)))
    curls = the(blocks, "curl -s").replace("localhost:8000", f"127.0.0.1:{port}")

    def run(lines):
        ran = subprocess.run(["bash", "-c", lines], cwd=folder, capture_output=True, text=True, check=True)
        return ran.stdout

    def tokens_from(text, source):
        found = re.findall(rf'_by_source_total\{{[^}}]*source="{source}"[^}}]*\}} (\S+)$', text, re.MULTILINE)
        return sum(float(each) for each in found)

    def answers(text):
        decoder, found = json.JSONDecoder(), []
        while text.strip().startswith("{"):
            value, end = decoder.raw_decode(text := text.strip())
            text = text[end:]
            found.append(value)
        return found, text

    def cached(answer):
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    with serving(lab, folder, flags, port):
        # Stores run behind the answer: the same lines again, until all is stored.
        def is_stored():
            said, rest = answers(run(curls))
            [_, second] = [each for each in said if "usage" in each]
            assert cached(second) <= 20 * BLOCK
            return cached(second) == 20 * BLOCK and tokens_from(rest, "host") > 0
        wait_for("the second answer comes from G2", is_stored, 300)
    first, _, third, last = curls.strip().splitlines()
    assert third == first
    with serving(lab, folder, flags, port):
        said, rest = answers(run("\n".join([first, last])))
        assert cached(said[0]) == 20 * BLOCK, said
        assert tokens_from(rest, "disk") == 20 * BLOCK, rest


@case("1")
def settings_of_the_guide_are_known(lab):
    """Every setting of the page's tables and blocks is one that the package reads, and all are there."""
    from ashlar.vllm import _OF_VLLM, _SETTINGS

    page = PAGE.read_text()
    table = re.search(r"^\| setting \|.*?\n\n", page, re.MULTILINE | re.DOTALL).group(0)
    rows = [row.split("|")[1] for row in table.strip().splitlines()[2:]]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == _SETTINGS, f"only in the page: {told - _SETTINGS}; not there: {_SETTINGS - told}"
    for block in snippets():
        for text in re.findall(r"\{\"kv_connector\".*\}", block, re.DOTALL):
            extra = json.loads(text)["kv_connector_extra_config"]
            assert set(extra) <= _SETTINGS | _OF_VLLM, extra
