"""Checks that no source file outgrows its budget; a file that does is two files.

usage: check_sizes.py ROOT

Budgets in lines: 600 for .h, .cc and .cu, 800 below tests/.
"""

import pathlib
import sys

FOLDERS = ("include", "src", "apps", "examples", "bench", "tests")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py"}
BUDGET = 600
TEST_BUDGET = 800


def check(root):
    problems = []
    for folder in FOLDERS:
        budget = TEST_BUDGET if folder == "tests" else BUDGET
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file() or "target" in path.parts:
                continue
            lines = path.read_bytes().count(b"\n")
            if lines > budget:
                problems.append(f"{path.relative_to(root)}:{lines}: {lines} lines; the budget is {budget}")
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
