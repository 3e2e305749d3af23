"""Checks that every benchmark parses; they are built only to measure.

usage: check_benchmarks.py ROOT COMMANDS [SCRATCH CLANG]

COMMANDS is the compile_commands.json of a build that knows the benchmarks. Each of their C++ files goes to
its compiler, with its own flags but without code generation. With CLANG they go to that compiler instead,
which parses in half the time, and the headers that they share are precompiled in the folder SCRATCH.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

INCLUDE = re.compile(r'^#include (<\w+>|<benchmark/benchmark.h>|"ashlar/(?!backend/)[^"]+")', re.MULTILINE)


def command_of(entry):
    """The compiler and its flags, without launchers, output and source."""
    words = shlex.split(entry["command"])
    launchers = ("cmake", "ccache", "env", "-E")
    while "=" in words[0] or pathlib.Path(words[0]).name in launchers:
        words = words[1:]
    output = words.index("-o")
    del words[output : output + 2]
    source = words.index("-c")
    del words[source : source + 2]
    return words


def meaning(words):
    """Of the flags of one compiler, those that decide what a text means to another."""
    kept = []
    for at, word in enumerate(words):
        if word.startswith(("-I", "-D", "-std=")):
            kept.append(word)
        elif word == "-isystem":
            kept += words[at : at + 2]
    return kept


def precompile(flags_of, scratch, clang):
    """Returns the flags that bring what the files share, and what went wrong."""
    scratch.mkdir(parents=True, exist_ok=True)
    header = scratch / "shared.h"
    shared = {name for file in flags_of for name in INCLUDE.findall(pathlib.Path(file).read_text())}
    header.write_text("".join(f"#include {name}\n" for name in sorted(shared)))
    flags = list(dict.fromkeys(word for words in flags_of.values() for word in words if word != "-isystem"))
    defined_by_all = {word for word in flags if all(word in words for words in flags_of.values())}
    folders = [word if word.startswith("-") else f"-isystem{word}" for word in flags
               if not word.startswith("-D") or word in defined_by_all]
    command = [clang, *folders, "-w", "-x", "c++-header", str(header), "-o", f"{header}.pch"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return ["-include-pch", f"{header}.pch"], result.stderr if result.returncode else ""


def parse(command, entry):
    """Returns what the compiler says against the file, or an empty text."""
    result = subprocess.run([*command, "-fsyntax-only", entry["file"]], cwd=entry["directory"],
                            capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else f"{entry['file']}: does not parse:\n{result.stderr}"


def check(root, commands, scratch=None, clang=None):
    folder = root / "bench"
    entries = {
        entry["file"]: entry
        for entry in json.loads(commands.read_text())
        if folder in pathlib.Path(entry["file"]).parents and entry["file"].endswith(".cc")
    }
    if not entries:
        return [f"{commands}: knows no benchmark"]
    command = {file: command_of(entry) for file, entry in entries.items()}
    if clang:
        flags = {file: meaning(words) for file, words in command.items()}
        shared, error = precompile(flags, scratch, clang)
        if error:
            return [f"{scratch}: what the benchmarks include does not parse:\n{error}"]
        command = {file: [clang, *words, "-w", *shared] for file, words in flags.items()}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda file: parse(command[file], entries[file]), entries)
        return [text for text in said if text]


def main():
    if len(sys.argv) not in (3, 5):
        sys.exit(__doc__)
    root, commands, *scratch = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
    problems = check(root, commands, *scratch, *sys.argv[4:])
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
