"""Writes docs/reference/c.md from the comments of the C headers, or checks that it is current.

usage: c_reference.py ROOT [--check]

Every function, struct and group of constants of c/include/ashlar_c/*.h is listed with the comment above it; a
function without one is an error. --check also wants every function to be called by the walk in tests/c, every
field to be set or read by some test there, and every field and constant to have its line in tests/c/abi_1.c.
"""

import pathlib
import re
import sys

PARTS = ("base", "blocks", "requests", "sequences", "tiers", "routing")
SECTION = re.compile(r"^// ---- (.*)$")
NAME = re.compile(r"\b(ashlar_\w+)\(")
PAGE_HEAD = """# C reference

Generated from `c/include/ashlar_c/` by `tools/c_reference.py`; [the guide](../guide/c.md) explains handles,
errors, threads and the ABI.
"""


def paragraph(lines):
    """Comment lines as Markdown: text in one paragraph, indented pictures as code."""
    text, picture, out = [], [], []

    def flush():
        if text:
            out.append(wrap(" ".join(text)))
        if picture:
            out.append("```text\n" + "\n".join(picture) + "\n```")
        text.clear()
        picture.clear()

    for line in lines:
        body = line[2:]
        if not body.strip():
            flush()
        elif body.startswith("   "):
            if text:
                flush()
            picture.append(body[1:])
        else:
            if picture:
                flush()
            text.append(body.strip())
    flush()
    return "\n\n".join(out)


def wrap(text, width=110):
    """Text in lines of at most `width` columns."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def items(text, shown):
    """Yields ("section", title), ("text", Markdown) and ("item", name, comment, code), in order."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if SECTION.match(line))
    comment = []
    while at < len(lines) and not lines[at].startswith("#ifdef __cplusplus"):
        line = lines[at]
        if section := SECTION.match(line):
            yield ("section", section[1])
        elif line.startswith("//"):
            comment.append(line)
            at += 1
            continue
        elif line.startswith(("ASHLAR_API", "typedef", "enum", "#define")):
            code = [line]
            while not complete(code):
                at += 1
                code.append(lines[at])
            name = name_of("\n".join(code))
            if line.startswith("ASHLAR_API") and not comment:
                sys.exit(f"{shown}:{at + 1}: {name} has no comment")
            yield ("item", name, paragraph(comment), "\n".join(code))
            comment = []
        elif comment:  # about what follows, not about one declaration
            yield ("text", paragraph(comment))
            comment = []
        at += 1


def complete(code):
    text = "\n".join(code)
    if text.startswith("#define"):
        return not code[-1].endswith("\\")
    return text.count("{") == text.count("}") and code[-1].rstrip().endswith((";", "};")) or (
        text.startswith("enum") and re.search(r"\};?$", text) is not None)


def name_of(code):
    if code.startswith("ASHLAR_API"):
        return NAME.search(code)[1]
    if code.startswith("typedef void"):
        return re.search(r"\(\*(\w+)\)", code)[1]
    if code.startswith("typedef"):
        return re.search(r"(\w+);$", code)[1]
    if code.startswith("#define"):
        return code.split()[1]
    return "ASHLAR_" + re.search(r"ASHLAR_([A-Z0-9]+)_?", code)[1] + "..."


def page(root):
    """The text of docs/reference/c.md, and the names of all functions."""
    out, functions = [PAGE_HEAD], []
    for part in PARTS:
        path = root / "c" / "include" / "ashlar_c" / f"{part}.h"
        for kind, *rest in items(path.read_text(), path.relative_to(root)):
            if kind == "section":
                out.append(f"## {rest[0]}\n")
            elif kind == "text":
                out.append(rest[0] + "\n")
            else:
                name, comment, code = rest
                if code.startswith("#define ASHLAR_") and "_INIT" in code:
                    continue
                if code.startswith("ASHLAR_API"):
                    functions.append(name)
                    code = code.removeprefix("ASHLAR_API ")
                title = f"### {name}\n" if code[:7] != "#define" else ""
                said = (title, comment and comment + "\n", f"```c\n{code}\n```\n")
                out.append("\n".join(filter(None, said)))
    return "\n".join(out), functions


def fields(root):
    """(struct, field) of every struct but handles; and the names of all constants."""
    found, constants = [], []
    for part in PARTS:
        text = re.sub(r"//[^\n]*", "", (root / "c" / "include" / "ashlar_c" / f"{part}.h").read_text())
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
            names = re.findall(r"(\w+)(?:\[\d+\])?;", body)
            found += [(name, field) for field in names if names != ["id"]]
        for body in re.findall(r"enum \{(.*?)\};", text, re.DOTALL):
            constants += re.findall(r"\b(ASHLAR_\w+) =", body)
    return found, constants


def untested(root):
    """What is wrong with the tests of fields and constants."""
    found, constants = fields(root)
    abi = re.sub(r"\s+", " ", (root / "tests" / "c" / "abi_1.c").read_text())
    for struct, field in found:
        if f"FIELD({struct}, {field}, " not in abi:
            yield f"{struct}.{field}: tests/c/abi_1.c has no line for it"
    for name in constants:
        if f"CONSTANT({name}, " not in abi:
            yield f"{name}: tests/c/abi_1.c has no line for it"
    folder = root / "tests" / "c"
    tests = "".join(path.read_text() for path in sorted(folder.iterdir())
                    if path.suffix in (".c", ".cc", ".h") and path.name != "abi_1.c")
    used = set(re.findall(r"(?:\.|->)(\w+)\b", tests))
    for struct, field in found:
        if field not in used and not field.startswith("reserved"):
            yield f"{struct}.{field}: no test of tests/c sets or reads it"


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--check"]):
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1]).resolve()
    text, functions = page(root)
    target = root / "docs" / "reference" / "c.md"
    if sys.argv[2:]:
        problems = []
        if not target.is_file() or target.read_text() != text:
            problems.append("docs/reference/c.md is not what the headers say; run tools/c_reference.py .")
        walked = "".join(path.read_text() for path in sorted((root / "tests" / "c").glob("walk*.c")))
        problems += [f"{name}: no walk of tests/c calls it" for name in functions if f"{name}(" not in walked]
        problems += untested(root)
        for problem in problems:
            print(problem)
        sys.exit(1 if problems else 0)
    target.parent.mkdir(exist_ok=True)
    target.write_text(text)


if __name__ == "__main__":
    main()
