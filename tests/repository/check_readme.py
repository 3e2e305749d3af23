"""Checks that README.md is short and that its program is the one that is compiled and run as a test.

usage: check_readme.py ROOT
"""

import pathlib
import re
import sys

EXAMPLE = "examples/quickstart.cc"
LONGEST = 120


def main(root):
    readme = (root / "README.md").read_text()
    block = re.search(r"^```cpp\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    if not block:
        print("README.md: there is no ```cpp block to compare with " + EXAMPLE)
        return 1
    if re.search(r"@[A-Z]+@", readme):
        print("README.md: a place that was to be filled in is still open")
        return 1
    if readme.count("\n") > LONGEST:
        print(f"README.md: {readme.count(chr(10))} lines; the limit is {LONGEST}")
        return 1
    if block.group(1) != (root / EXAMPLE).read_text():
        print(f"README.md: the program differs from {EXAMPLE}; copy one over the other")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
