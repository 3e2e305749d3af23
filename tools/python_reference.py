"""Writes docs/reference/python.md from the stub and the modules of an installed package `ashlar`.

usage: python_reference.py PACKAGE [--check] [--output FILE]

PACKAGE   the folder of the installed package, which has _native.pyi
--check   writes nothing; fails when the file is not what would be written

Nothing is imported: signatures and docstrings are read from the sources. What a module shows is its __all__,
and without one its public classes and functions.
"""

import argparse
import ast
import pathlib
import sys
import textwrap

HEAD = """# Python reference

Written by `tools/python_reference.py` from the docstrings; do not edit. The guide is
[docs/guide/python.md](../guide/python.md).
"""
WIDTH = 100  # of signatures
COLUMNS = 108


def filled(text):
    """Paragraphs filled anew; lists and indented lines stay as they are."""
    made = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        if any(line.startswith((" ", "- ", "* ", "|", "`" * 3)) for line in lines):
            made.append(paragraph)
        else:
            made.append(textwrap.fill(paragraph, COLUMNS, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(made)


def text_of(node):
    """The docstring as Markdown."""
    return filled((ast.get_docstring(node) or "").strip())


def signature(name, node):
    """`name(arguments) -> result`, without self."""
    arguments = ast.unparse(node.args)
    parts = arguments.split(", ", 1)
    if parts[0] in ("self", "self: Self", "cls"):
        arguments = parts[1] if len(parts) > 1 else ""
    arguments = arguments.removeprefix("/, ").removeprefix("/")
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{name}({arguments}){result}"
    if len(line) <= WIDTH:
        return line
    wrapped = textwrap.wrap(arguments, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return f"{name}(\n" + "\n".join(f"    {part}" for part in wrapped) + f"\n){result}"


def has(node, decorator):
    return any(ast.unparse(item) == decorator for item in node.decorator_list)


def is_public(name):
    return not name.startswith("_")


def describe_function(name, node):
    lines = ["```python", signature(name, node), "```"]
    if text_of(node):
        lines += ["", text_of(node)]
    return lines + [""]


def describe_class(name, node):
    bases = [ast.unparse(base) for base in node.bases if ast.unparse(base) not in ("object", "enum.Enum")]
    lines = [f"### {name}", ""]
    if bases:
        lines += [f"Bases: {', '.join(f'`{base}`' for base in bases)}.", ""]
    if text_of(node):
        lines += [text_of(node), ""]
    properties = []
    for member in node.body:
        if not isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if has(member, "property"):
            kind = f" ({ast.unparse(member.returns)})" if member.returns is not None else ""
            item = f"- `{member.name}`{kind}: {' '.join(text_of(member).split())}"
            properties += textwrap.wrap(item, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
        elif any("setter" in ast.unparse(item) for item in member.decorator_list):
            continue
        elif member.name == "__init__":
            lines += describe_function(name, member)
        elif is_public(member.name) or member.name in ("__len__", "__getitem__", "__call__", "__iter__"):
            lines += describe_function(member.name, member)
    return lines + properties + ([""] if properties else [])


def definitions(tree):
    """The classes, functions (all overloads) and constants of a module, by name."""
    found = {}
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node)
    return found


def listed(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return None


def describe_module(name, tree, native):
    own = definitions(tree)
    names = listed(tree)
    if names is None:
        names = [item for item in own if is_public(item) and not isinstance(own[item][0], ast.AnnAssign)]
    lines = [f"## {name}", "", text_of(tree), ""]
    known = {**native, **own}
    order = {item: at for at, item in enumerate(known)}
    missing = [item for item in names if item not in known and item != "__version__"]
    if missing:
        raise SystemExit(f"{name}: {', '.join(missing)} is in __all__ and nowhere defined")
    functions, constants = [], []
    for item in sorted((item for item in names if item in known), key=order.__getitem__):
        for node in known[item]:
            if isinstance(node, ast.ClassDef):
                lines += describe_class(item, node)
            elif isinstance(node, ast.AnnAssign):
                value = f" = {ast.unparse(node.value)}" if node.value is not None else ""
                constants.append(f"- `{item}: {ast.unparse(node.annotation)}{value}`")
            else:
                functions += describe_function(item, node)
    if functions:
        lines += ["### Functions", "", *functions]
    if constants and names:
        lines += ["### Constants", "", *constants, ""]
    return lines


def reference(package):
    native = definitions(ast.parse((package / "_native.pyi").read_text()))
    lines = [HEAD]
    modules = [package / "__init__.py"]
    modules += sorted(path for path in package.glob("*.py") if is_public(path.stem))
    for path in modules:
        name = "ashlar" if path.stem == "__init__" else f"ashlar.{path.stem}"
        lines += describe_module(name, ast.parse(path.read_text()), native)
    text = "\n".join(line.rstrip() for line in "\n".join(lines).split("\n"))
    return text.rstrip("\n") + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--output", type=pathlib.Path, default=root / "docs" / "reference" / "python.md")
    options = parser.parse_args()
    text = reference(options.package)
    if options.check:
        if not options.output.exists() or options.output.read_text() != text:
            print(f"{options.output.name} is not what the docstrings say; write it: "
                  f"python3 tools/python_reference.py {options.package}", file=sys.stderr)
            return 1
        return 0
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
