"""Checks that libashlar_c.so exports exactly the functions of ashlar_c.h, and that these are the listed ones.

usage: check_symbols.py ROOT NM LIBRARY

tests/c/symbols.txt lists the interface. A function that leaves it breaks programs; one that joins it stays.
"""

import pathlib
import re
import subprocess
import sys

DECLARATION = re.compile(r"^ASHLAR_API [\w* ]*?\b(ashlar_\w+)\(", re.MULTILINE)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    dump = subprocess.run([sys.argv[2], "-D", "--defined-only", sys.argv[3]], capture_output=True, text=True,
                          check=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in dump.splitlines() if line.split()[-2] != "A"}
    headers = sorted((root / "c" / "include").rglob("*.h"))
    declared = {name for path in headers for name in DECLARATION.findall(path.read_text())}
    listed = (root / "tests" / "c" / "symbols.txt").read_text().split()
    problems = [f"{name}: exported, and not in the header" for name in sorted(exported - declared)]
    problems += [f"{name}: in the header, and not exported" for name in sorted(declared - exported)]
    problems += [f"{name}: not in tests/c/symbols.txt; add it" for name in sorted(exported - set(listed))]
    problems += [f"{name}: in tests/c/symbols.txt, and gone: programs need it"
                 for name in sorted(set(listed) - exported)]
    if listed != sorted(listed):
        problems.append("tests/c/symbols.txt is not in order")
    for problem in problems:
        print(problem)
    sys.exit(1 if problems or not exported else 0)


if __name__ == "__main__":
    main()
