"""Checks that docs/glossary.md defines each word once, in alphabetical order.

usage: check_glossary.py ROOT
"""

import pathlib
import re
import sys

ROW = re.compile(r"^\| (.+?) \| .+ \|$")


def check(root):
    lines = (root / "docs" / "glossary.md").read_text().splitlines()
    words = [(at, match[1].strip("`")) for at, line in enumerate(lines, 1) if (match := ROW.match(line))][1:]
    problems = [] if words else ["docs/glossary.md:1: defines no word"]
    for (_, before), (at, word) in zip(words, words[1:]):
        plain, earlier = (re.sub(r" \(.*\)$", "", name).lower() for name in (word, before))
        if plain == earlier:
            problems.append(f"docs/glossary.md:{at}: {plain} is defined twice")
        elif plain < earlier:
            problems.append(f"docs/glossary.md:{at}: {word} comes after {before}")
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
