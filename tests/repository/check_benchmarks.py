"""Checks that every benchmark parses; they are built only to measure.

usage: check_benchmarks.py ROOT COMMANDS

COMMANDS is the compile_commands.json of a build that knows the benchmarks. Each of their C++ files goes to
its compiler, with its own flags but without code generation.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys


def parse(entry):
    """Returns what the compiler says against the file, or an empty text."""
    words = shlex.split(entry["command"])
    launchers = ("cmake", "ccache", "env", "-E")
    while "=" in words[0] or pathlib.Path(words[0]).name in launchers:
        words = words[1:]
    output = words.index("-o")
    del words[output : output + 2]
    words[words.index("-c")] = "-fsyntax-only"
    result = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else f"{entry['file']}: does not parse:\n{result.stderr}"


def check(root, commands):
    folder = root / "bench"
    entries = {
        entry["file"]: entry
        for entry in json.loads(commands.read_text())
        if folder in pathlib.Path(entry["file"]).parents and entry["file"].endswith(".cc")
    }
    if not entries:
        return [f"{commands}: knows no benchmark"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [text for text in pool.map(parse, entries.values()) if text]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    problems = check(*(pathlib.Path(argument).resolve() for argument in sys.argv[1:3]))
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
