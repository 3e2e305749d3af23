"""Counts asserts and comments, per layer and backend leaf.

usage: count_checks.py ROOT [--check]

lines     of include/ashlar/X and src/X: C++ and CUDA sources and headers
asserts   ASHLAR_CHECK, ASHLAR_DCHECK and static_assert outside comments that say more than that a pointer is
          not null, a container not empty, an index in range, or a type a model of a concept
per 1000  asserts per 1,000 lines
comments  share of comment lines among the non-blank lines of the public headers

With --check the program prints only what is too low and fails: below 5 asserts per 1,000 lines in a layer or
leaf, or below 30 % comments over all public headers.
"""

import pathlib
import re
import sys

SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}
LEAST_ASSERTS = 5.0
LEAST_COMMENTS = 0.30
ASSERT = re.compile(r"\b(ASHLAR_CHECK|ASHLAR_DCHECK|static_assert)\s*\(")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#[ \t]*define\b[^\n]*", re.DOTALL | re.MULTILINE)


# An expression without operators: names, members, calls, subscripts.
PLAIN = r"[\w:.]+(?:(?:->|\.|::)\w+|\([^()]*\)|\[[^\[\]]*\])*"
RESTATED = (
    rf"{PLAIN} != nullptr",
    r"(?:\w+(?:->|\.))*(?!is_|has_|false$|done$|valid$)\w+(?<!ed)(?<!ed_)",  # a bare pointer, not a state
    rf"!(?:{PLAIN}(?:->|\.))?empty\(\)",
    rf"(?!size_|{PLAIN}size\(){PLAIN} < (?:{PLAIN}(?:->|\.|::))?\w*(?:size|count|length|extent|slots)\w*"
    r"(?:\([^()]*\))?",
    rf"{PLAIN}\.value\(\) < {PLAIN}",
)
RESTATEMENT = re.compile("|".join(f"(?:{form})" for form in RESTATED))
CONCEPT = re.compile(r"!?(?:\w+::)*(?!\w+_v<)\w+<[^()]*>", re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')


def first_argument(text, at):
    """The first argument of a call whose opening parenthesis ends at `at`, in one line."""
    depth, start = 0, at
    while at < len(text) and (depth or text[at] not in ",)"):
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
        at += 1
    return " ".join(text[start:at].split())


def says_something(macro, condition):
    """Whether an assert with this condition counts."""
    if macro == "static_assert":
        return not CONCEPT.fullmatch(condition)
    return not all(RESTATEMENT.fullmatch(part.strip()) for part in condition.split("&&"))


def count_asserts(text):
    text = STRING.sub('""', COMMENT.sub("", text))
    found = [(match[1], first_argument(text, match.end())) for match in ASSERT.finditer(text)]
    return sum(says_something(macro, condition) for macro, condition in found)


class Part:
    """A layer or a leaf."""

    def __init__(self, name):
        self.name = name
        self.lines = self.asserts = self.comments = self.filled = 0

    def add(self, text, public):
        self.lines += text.count("\n")
        self.asserts += count_asserts(text)
        if public:
            filled = [line.strip() for line in text.splitlines() if line.strip()]
            self.filled += len(filled)
            self.comments += sum(line.startswith(("//", "/*", "* ")) for line in filled)

    def density(self):
        return 1000 * self.asserts / self.lines if self.lines else 0.0

    def share(self):
        return self.comments / self.filled if self.filled else None


def part_of(parts):
    """The name of the layer or leaf of a path below include/ashlar or src."""
    if len(parts) == 1:
        return None
    return "/".join(parts[:2]) if parts[0] == "backend" else parts[0]


def count(root):
    """(parts, whole): the layers and leaves by name, and everything together, ashlar.h included."""
    parts, whole = {}, Part("all")
    for base, public in ((root / "include" / "ashlar", True), (root / "src", False)):
        for path in sorted(base.rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            text = path.read_text(errors="replace")
            whole.add(text, public)
            if name := part_of(path.relative_to(base).parts):
                parts.setdefault(name, Part(name)).add(text, public)
    return [parts[name] for name in sorted(parts)], whole


def line_of(part):
    share = "" if part.share() is None else f"{100 * part.share():.1f} %"
    return f"{part.name:<16}{part.lines:>8}{part.asserts:>9}{part.density():>10.1f}{share:>10}".rstrip()


def check(parts, whole):
    problems = [
        f"{part.name}: {part.asserts} asserts in {part.lines} lines are {part.density():.1f} per 1,000; "
        f"{LEAST_ASSERTS:.0f} are wanted"
        for part in parts
        if part.density() < LEAST_ASSERTS
    ]
    if whole.share() is None or whole.share() < LEAST_COMMENTS:
        share = 100 * (whole.share() or 0)
        problems.append(f"include: {share:.1f} % of the lines of public headers are comments; "
                        f"{100 * LEAST_COMMENTS:.0f} % are wanted")
    return problems


def main():
    arguments = sys.argv[1:]
    checks = "--check" in arguments
    if checks:
        arguments.remove("--check")
    if len(arguments) != 1:
        sys.exit(__doc__)
    parts, whole = count(pathlib.Path(arguments[0]).resolve())
    if checks:
        problems = check(parts, whole)
        for problem in problems:
            print(problem)
        sys.exit(1 if problems else 0)
    print(f"{'layer or leaf':<16}{'lines':>8}{'asserts':>9}{'per 1000':>10}{'comments':>10}")
    for part in [*parts, whole]:
        print(line_of(part))


if __name__ == "__main__":
    main()
