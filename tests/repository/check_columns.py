"""Checks that lines of code and comments fit into 110 columns; Markdown is exempt.

usage: check_columns.py ROOT

Counts characters, not bytes, in C++, CUDA, Python, Rust, CMake and Make files, in scripts/, and in scripts
elsewhere that start with a `#!` line.
"""

import pathlib
import sys

from check_text import files

LIMIT = 110
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".cmake", ".sh", ".rs"}
NAMES = {"CMakeLists.txt", "Makefile"}


def counts(path, root):
    """Whether the limit holds for the file."""
    if path.suffix in SUFFIXES or path.name in NAMES or path.name.endswith(".cmake.in"):
        return True
    if path.relative_to(root).parts[0] == "scripts":
        return True
    with path.open("rb") as file:
        return not path.suffix and file.read(2) == b"#!"


def check(root):
    problems = []
    for path in files(root):
        if not path.is_file() or path.is_symlink() or not counts(path, root):
            continue
        for at, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
            if len(line) > LIMIT:
                problems.append(f"{path.relative_to(root)}:{at}: {len(line)} columns; the limit is {LIMIT}")
    return problems


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problems = check(pathlib.Path(sys.argv[1]).resolve())
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
