"""Checks that README.md is short and that the programs in the documentation are compiled and run as tests.

usage: check_readme.py ROOT

README.md has at most 120 lines. Its first C++ block is examples/quickstart.cc, whose main() has at most 12
lines that are not blank; that of examples/engine_steps.cc has at most 24. In README.md and docs/, a C++ block
behind a line `<!-- program: examples/NAME.cc -->` is that file, and one behind `<!-- excerpt: FILE -->` is in
it, line by line.
"""

import pathlib
import re
import sys

QUICKSTART = "examples/quickstart.cc"
LONGEST = 120
LONGEST_MAIN = {QUICKSTART: 12, "examples/engine_steps.cc": 24}
BLOCK = re.compile(r"^```cpp\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARKED = re.compile(r"^<!-- program: (\S+) -->\n```cpp\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXCERPT = re.compile(r"^<!-- excerpt: (\S+) -->\n```c(?:pp)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MAIN = re.compile(r"^int main\([^)]*\) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)


def check_readme(root, text):
    block = BLOCK.search(text)
    if not block:
        yield "README.md: there is no ```cpp block to compare with " + QUICKSTART
        return
    if re.search(r"@[A-Z]+@", text):
        yield "README.md: a place that was to be filled in is still open"
    if (lines := text.count("\n")) > LONGEST:
        yield f"README.md: {lines} lines; the limit is {LONGEST}"
    if block[1] != (root / QUICKSTART).read_text():
        yield f"README.md: the program differs from {QUICKSTART}; copy one over the other"


def check_mains(root):
    for name, limit in LONGEST_MAIN.items():
        if (root / name).is_file() and (body := MAIN.search((root / name).read_text())):
            lines = sum(bool(line.strip()) for line in body[1].splitlines())
            if lines > limit:
                yield f"{name}: main() has {lines} lines; the limit is {limit}"


def check_marked(root, path):
    shown = path.relative_to(root)
    for name, excerpt in EXCERPT.findall(path.read_text()):
        if not (root / name).is_file():
            yield f"{shown}: there is no {name}"
        elif "\n" + excerpt not in "\n" + (root / name).read_text():
            yield f"{shown}: {name} has no such lines; copy them again: {excerpt.splitlines()[0].strip()}"
    for name, program in MARKED.findall(path.read_text()):
        if not (root / name).is_file():
            yield f"{shown}: there is no {name}"
        elif program != (root / name).read_text():
            yield f"{shown}: the program differs from {name}; copy one over the other"


def check(root):
    readme = root / "README.md"
    problems = [*check_readme(root, readme.read_text()), *check_mains(root)]
    for path in [readme, *sorted((root / "docs").rglob("*.md"))]:
        problems.extend(check_marked(root, path))
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
