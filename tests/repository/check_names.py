"""Checks that no two types share a name.

usage: check_names.py ROOT

Looks at classes, structs, unions, enums, concepts and strong ids at namespace scope below include, src, c,
apps and bench of ROOT, in any namespace, anonymous ones too. Forward declarations, specialisations and types
inside other types do not count. Within one file a name counts once: it may have a variant per platform.
"""

import collections
import pathlib
import sys

from cpp_types import types_of

SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}


def check(root):
    found = collections.defaultdict(dict)  # name -> file -> line
    for folder in ("include", "src", "c", "apps", "bench"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                for line, name in types_of(path.read_text(errors="replace")):
                    found[name].setdefault(path.relative_to(root), line)
    problems = []
    for name, places in sorted(found.items()):
        if len(places) > 1:
            listed = ", ".join(f"{path}:{line}" for path, line in places.items())
            problems.append(f"{name}: defined {len(places)} times: {listed}")
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
