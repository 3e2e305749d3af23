"""Checks that docs/glossary.md defines each word once, in alphabetical order.

A word with several senses has a row for each, and each of them is qualified: "slot (block)", "slot (index)".

usage: check_glossary.py ROOT
"""

import pathlib
import re
import sys

ROW = re.compile(r"^\| (.+?) \| .+ \|$")


def split(word):
    """The word and its qualifier, which may be empty."""
    match = re.fullmatch(r"(.*?)(?: \((.*)\))?", word.lower())
    return match[1], match[2] or ""


def check(root):
    lines = (root / "docs" / "glossary.md").read_text().splitlines()
    words = [(at, match[1].strip("`")) for at, line in enumerate(lines, 1) if (match := ROW.match(line))][1:]
    problems = [] if words else ["docs/glossary.md:1: defines no word"]
    for (_, before), (at, word) in zip(words, words[1:]):
        (plain, sense), (earlier, other) = split(word), split(before)
        if (plain, sense) == (earlier, other):
            problems.append(f"docs/glossary.md:{at}: {word} is defined twice")
        elif plain == earlier and not other:
            problems.append(f"docs/glossary.md:{at}: {word} follows {before}, which needs a qualifier too")
        elif (plain, sense) < (earlier, other):
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
