"""Checks that neither files nor the public interface outgrow their budgets.

usage: check_sizes.py ROOT

lines    600 for a source file, 800 below tests/; a file that outgrows it is two files
headers  106 installed ones for rows 0 to 5 of tools/layers.txt together, ashlar.h among them; 10 for each
         later row, for each folder marked `any`, and for each backend leaf
users    each public header is included by an example, a program, a benchmark, a leaf, another public header
         or tests/install; those of testing/ by any test
"""

import pathlib
import re
import sys

from check_layers import Order

FOLDERS = ("include", "src", "c", "apps", "examples", "bench", "tests")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py"}
BUDGET = 600
TEST_BUDGET = 800
CORE_ROWS = 5
CORE_HEADERS = 106
PART_HEADERS = 10
INCLUDE = re.compile(r'^#include "(ashlar/[^"]+)"', re.MULTILINE)


def check_headers(root):
    """Yields one line per part of the public interface that has too many headers."""
    order = Order(root / "tools" / "layers.txt")
    base = root / "include" / "ashlar"
    counts = {}
    for path in base.rglob("*.h"):
        parts = path.relative_to(base).parts
        place = order.place(parts) if len(parts) > 1 else None
        if place is None or place[0] == "layer" and order.number[place[1]] <= CORE_ROWS:
            part = f"rows 0 to {CORE_ROWS}"
        elif place[0] == "layer":
            part = f"row {order.number[place[1]]}"
        else:
            part = "/".join(place) if place[0] == "backend" else place[1]
        counts[part] = counts.get(part, 0) + 1
    for part, count in sorted(counts.items()):
        budget = CORE_HEADERS if part == f"rows 0 to {CORE_ROWS}" else PART_HEADERS
        if count > budget:
            yield f"include/ashlar: {count} public headers in {part}; the budget is {budget}"


def check_users(root):
    """Yields one line per public header that nothing outside the library's own sources includes."""
    used = {}  # header -> the files that include it
    for folder in ("include", "examples", "apps", "bench", "src/backend", "tests"):
        for path in (root / folder).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file():
                for name in INCLUDE.findall(path.read_text(errors="replace")):
                    used.setdefault(name, set()).add(path.relative_to(root).as_posix())
    for path in sorted((root / "include" / "ashlar").rglob("*.h")):
        name = path.relative_to(root / "include").as_posix()
        users = used.get(name, set()) - {f"include/{name}"}
        if not name.startswith("ashlar/testing/"):
            users -= {user for user in users if user.startswith("tests/") and "/install/" not in user}
        if not users and name != "ashlar/ashlar.h":
            yield f"include/{name}: no example, program, benchmark, leaf or public header includes it"


def check_lines(root):
    """Yields one line per file that is too long."""
    for folder in FOLDERS:
        budget = TEST_BUDGET if folder == "tests" else BUDGET
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file() or "target" in path.parts:
                continue
            lines = path.read_bytes().count(b"\n")
            if lines > budget:
                yield f"{path.relative_to(root)}:{lines}: {lines} lines; the budget is {budget}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1]).resolve()
    problems = [*check_lines(root), *check_headers(root), *check_users(root)]
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
