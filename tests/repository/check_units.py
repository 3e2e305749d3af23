"""Checks that no source hides a name of a header from the sources that are compiled in one unit with it.

usage: check_units.py ROOT

Sources of a folder share a unit (cmake/ashlar_unity.cmake). A name that one of them defines in an anonymous
namespace hides the same name of a header from all later sources, silently where the types agree. So a name at
the top of an anonymous namespace below src, c, apps, python or tests must not appear in a header that a
source of its folder includes, in the same namespace or one around it.
"""

import collections
import pathlib
import re
import sys

OPENS = re.compile(r"^(?:inline )?namespace(?: ([\w:]+))? \{$")
CLOSES = re.compile(r"^\}  // namespace(?: [\w:]+)?$")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
DEFINES = [
    re.compile(r"^(?:class|struct|enum class|enum) (?:alignas\([^)]*\) )?(?:\[\[[^\]]*\]\] )?(\w+)\b[^;]*$"),
    re.compile(r"^using (\w+) ="),
    re.compile(r"^(?:inline |static )*(?:constexpr|const) [^(){}]*?\b(\w+)(?:\[\w*\])* ?[={]"),
    re.compile(r"^(?:inline |static |constexpr |\[\[[^\]]*\]\] )*"
               r"(?!return|else|using|namespace|template|TEST|INSTANTIATE)"
               r"[\w:]+(?:<[^()]*>)?[&* ]+(\w+)\("),
]


def defined(text):
    """(namespace, name, anonymous) of everything defined at the top of a namespace."""
    stack, found = [], []
    for line in text.splitlines():
        if opened := OPENS.match(line):
            stack.append(opened[1] or "")
        elif CLOSES.match(line) and stack:
            stack.pop()
        elif stack and line[:1] not in ("", " ", "/", "#", "}", ")"):
            for pattern in DEFINES:
                if match := pattern.match(line):
                    found.append(("::".join(part for part in stack if part), match[1], "" in stack))
                    break
    return found


def check(root):
    headers, problems = {}, []

    def names_of(path):
        if path not in headers:
            names = collections.defaultdict(set)
            for namespace, name, anonymous in defined(path.read_text()):
                if not anonymous:
                    names[name].add(namespace)
            headers[path] = names
        return headers[path]

    folders = collections.defaultdict(list)
    for top in ("src", "c", "apps", "python", "tests"):
        for source in sorted((root / top).rglob("*.cc")):
            folders[source.parent].append(source)
    for sources in folders.values():
        texts = {source: source.read_text() for source in sources}
        included = set()
        for text in texts.values():
            for name in INCLUDE.findall(text):
                places = [root / folder / name for folder in ("include", "src", "python/src", "tests", ".")]
                included |= {place for place in places if place.is_file()}
        for source, text in texts.items():
            for namespace, name, anonymous in defined(text):
                if not anonymous:
                    continue
                for header in sorted(included):
                    around = [other for other in names_of(header).get(name, ())
                              if f"{namespace}::".startswith(f"{other}::")]
                    if around:
                        problems.append(f"{source.relative_to(root)}: {name} hides that of "
                                        f"{header.relative_to(root)}")
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
