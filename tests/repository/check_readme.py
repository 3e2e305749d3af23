"""Checks that the programs on documentation pages are the ones that are compiled and run as tests.

usage: check_readme.py ROOT
"""

import pathlib
import re
import sys

# page -> the example that its first ```cpp block shows
PROGRAMS = {
    "README.md": "examples/quickstart.cc",
    "docs/block_lifecycle.md": "examples/block_lifecycle.cc",
}


def problem(root, page, example):
    """What is wrong with a page; None when nothing is."""
    text = (root / page).read_text()
    block = re.search(r"^```cpp\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    if not block:
        return f"{page}: there is no ```cpp block to compare with {example}"
    if re.search(r"@[A-Z]+@", text):
        return f"{page}: a place that was to be filled in is still open"
    if block.group(1) != (root / example).read_text():
        return f"{page}: the program differs from {example}; copy one over the other"
    return None


def main(root):
    found = [line for page, example in PROGRAMS.items() if (line := problem(root, page, example))]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
