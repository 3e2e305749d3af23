"""Checks that the files which documentation and comments name exist.

usage: check_paths.py ROOT

Looks at every file that git tracks, or would track. Rules:
  link   a relative link in Markdown leads to a file or folder, and its #anchor to a heading there
  path   a path below src/, include/, tests/, bench/, examples/, docs/, tools/, scripts/, cmake/ or apps/ that
         ends in a file name with an extension exists, in backticks of Markdown and in comments of C++;
         * stands for anything, and {a,b} for either
  name   a C++ file that Markdown names in backticks by the end of its path exists somewhere; CHANGELOG.md may
         name files that are gone
  header a header that a comment of C++ names by its folder exists: ashlar/x/y.h below include/, and x/y.h
         at the end of some path where x is a layer (a folder of src/ or include/ashlar/)
"""

import pathlib
import re
import sys

from check_text import files

FOLDERS = "src|include|tests|bench|examples|docs|tools|scripts|cmake|apps"
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?<![\w./-])(?:{FOLDERS})/[\w.*{{}},/-]*\.\w+(?![\w/*])")
NAME = re.compile(r"[\w/]+\.(?:h|cc|cu)")
EXTERNAL = {"xxhash.h"}
HEADER = re.compile(r"(?<![\w./{}*-])([\w]+)/[\w/]+\.h\b")
COMMENT = re.compile(r"//(.*)")
SOURCES = {".h", ".cc", ".cu"}
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(text):
    """The anchors of the headings, as common renderers make them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w -]", "", plain).replace(" ", "-"))
    return found


def alternatives(name):
    """The names that a {a,b} stands for."""
    match = re.search(r"\{([^{}]*)\}", name)
    if not match:
        return [name]
    return [
        full
        for word in match[1].split(",")
        for full in alternatives(name[: match.start()] + word + name[match.end() :])
    ]


def broken_link(path, root, target):
    """Why a link leads nowhere; None when it leads somewhere."""
    if re.match(r"[a-z]+:", target):
        return None
    name, _, anchor = target.partition("#")
    there = (path.parent / name).resolve() if name else path
    if not there.exists() or root not in [there, *there.parents]:
        return f"link: there is no {target}"
    if anchor and there.suffix == ".md" and anchor not in anchors(there.read_text()):
        return f"link: there is no heading for {target}"
    return None


def missing(text, root):
    """Yields the paths in a text that lead nowhere."""
    for name in PATH.findall(text):
        for one in alternatives(name):
            if not any(root.glob(one)):
                yield f"path: there is no {one}"


def missing_headers(text, ends, layers):
    """Yields the headers in a text that lie nowhere."""
    for name in HEADER.finditer(text):
        full = f"include/{name[0]}" if name[1] == "ashlar" else name[0]
        if (name[1] == "ashlar" or name[1] in layers) and full not in ends:
            yield f"header: there is no {name[0]}"


def check_source(path, root, ends, layers):
    for at, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
        if comment := COMMENT.search(line):
            for problem in [*missing(comment[1], root), *missing_headers(comment[1], ends, layers)]:
                yield f"{path.relative_to(root)}:{at}: {problem}"


def check_page(path, root, ends):
    text = path.read_text()
    prose = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for at, line in enumerate(prose.split("\n"), 1):
        for target in LINK.findall(CODE.sub("", line)):
            if problem := broken_link(path, root, target):
                yield f"{path.relative_to(root)}:{at}: {problem}"
        for code in CODE.findall(line):
            for problem in missing(code, root):
                yield f"{path.relative_to(root)}:{at}: {problem}"
            known = PATH.match(code) or code in ends | EXTERNAL or path.name == "CHANGELOG.md"
            if NAME.fullmatch(code) and not known:
                yield f"{path.relative_to(root)}:{at}: name: there is no {code}"


def ends_of(path, root):
    """Every end of the path: c.h, b/c.h and a/b/c.h."""
    parts = path.relative_to(root).parts
    return {"/".join(parts[at:]) for at in range(len(parts))}


def check(root):
    paths = [path for path in files(root) if path.is_file()]
    ends = set().union(*(ends_of(path, root) for path in paths if path.suffix in SOURCES))
    folders = [*root.glob("src/*/"), *root.glob("include/ashlar/*/")]
    layers = {folder.name for folder in folders if folder.is_dir()}
    problems = []
    for path in paths:
        if path.suffix == ".md":
            problems.extend(check_page(path, root, ends))
        elif path.suffix in SOURCES:
            problems.extend(check_source(path, root, ends, layers))
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
