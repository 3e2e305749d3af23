"""Checks that lines of code, comments and prose fit into 110 columns.

usage: check_columns.py ROOT

Counts characters, not bytes, in C++, CUDA, Python, Rust, CMake and Make files, in scripts/, and in scripts
elsewhere that start with a `#!` line. In Markdown tables, headings, code blocks (fenced or indented) and
lines that are one link or one code span are exempt.
"""

import pathlib
import re
import sys

from check_text import files

LIMIT = 110
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".cmake", ".sh", ".rs"}
NAMES = {"CMakeLists.txt", "Makefile"}
ONE_LINK = re.compile(r"\s*(?:[-*] )?(?:\[[^\]]*\]\([^)]*\)|`[^`]*`)[.,;:]?")


def counts(path, root):
    """Whether the limit holds for the file."""
    if path.suffix in SUFFIXES or path.name in NAMES or path.name.endswith(".cmake.in"):
        return True
    if path.relative_to(root).parts[0] == "scripts":
        return True
    with path.open("rb") as file:
        return not path.suffix and file.read(2) == b"#!"


def prose(lines):
    """Yields (number, line) of the lines of Markdown for which the limit holds."""
    fenced = in_code = in_list = False
    before = ""
    for at, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip():
            if not line.startswith("    "):
                in_code = False
                in_list = bool(re.match(r"\s*(?:[-*+]|\d+\.) ", line)) or in_list and line.startswith("  ")
            elif not before.strip() and not in_list:
                in_code = True
            if not in_code and not line.lstrip().startswith(("|", "#")) and not ONE_LINK.fullmatch(line):
                yield at, line
        before = line


def check(root):
    problems = []
    for path in files(root):
        if not path.is_file() or path.is_symlink():
            continue
        if path.suffix != ".md" and not counts(path, root):
            continue
        lines = path.read_text(errors="replace").split("\n")
        for at, line in prose(lines) if path.suffix == ".md" else enumerate(lines, 1):
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
