"""The examples print what they promise, and the code of docs/guide/python.md runs."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "python"
GUIDE = ROOT / "docs" / "guide" / "python.md"

PRINTED = {
    "quickstart": [
        "first request:  0 tokens cached",
        "second request: 48 tokens cached",
        "64 blocks: 61 reset, 3 inactive, 0 pinned, 0 held, 0 active, 0 owned, 0 quarantined, "
        "0 allocations waiting",
        "refused: invalid_argument",
    ],
    "tiers": [
        "tiers of each block: [7, 7, 7, 7, 7, 7]",
        "evicted from G1: 5 of 6, one is pinned",
        "found: 6 blocks in g3 from block 0",
        "onboarded: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]",
        "read from the file: 6",
    ],
    "index": [
        "worker 1: 6 blocks, 6 of them in its GPU",
        "worker 2: 9 blocks, 4 of them in its GPU",
        "after a removal: [2, 9]",
        "the engine: 30 messages, 0 lost, 175 blocks",
    ],
    "numpy_tensors": [
        "G1 is the engine's array: True",
        "back in the engine's array: True",
        "one block: (2, 2, 16, 2, 64) float32 read-only",
        "by DLPack: True",
    ],
    "transformers_chat": [
        " 120 tokens,    0 reused: nothing yet",
        " 256 tokens,  128 reused: 8 blocks from g1",
        " 392 tokens,  256 reused: 16 blocks from g1",
        " 528 tokens,  400 reused: 25 blocks from g2",
        " 528 tokens,  527 reused: 33 blocks from g3",
        "the answer without a store is the same: True",
    ],
    "torch_tensors": ["cpu: (2, 16, 2, 64) torch.bfloat16, without a copy: True, its bytes are back: True"],
}


def run(path, folder):
    ended = subprocess.run([sys.executable, "-B", str(path)], cwd=folder, capture_output=True, text=True,
                           timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_every_example_is_run():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(name, tmp_path):
    printed = run(EXAMPLES / f"{name}.py", tmp_path)
    if printed and printed[0].endswith("is not installed: nothing to show"):
        pytest.skip(printed[0])
    assert printed[:len(PRINTED[name])] == PRINTED[name]


def test_the_guide_runs(tmp_path):
    """All blocks of the page are one program; a comment behind a print is what it prints."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    program = "\n".join(blocks)
    (tmp_path / "guide.py").write_text(program)
    prints = [line for line in program.splitlines() if line.lstrip().startswith("print(")]
    promised = [line.split("  # ", 1)[1] for line in prints]
    assert len(promised) >= 10
    assert run(tmp_path / "guide.py", tmp_path) == promised
