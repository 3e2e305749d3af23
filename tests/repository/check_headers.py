"""Checks that every public header compiles alone.

usage: check_headers.py ROOT SCRATCH COMPILER [LAUNCHER…]

Compiles one file per header below ROOT/include, each with only that header in it, in the folder SCRATCH. LAUNCHER
(ccache and its settings) stands before the compiler and makes a second run cheap.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c"]


def compile_alone(header, root, scratch, compiler):
    """Returns what the compiler says against the header, or an empty text."""
    name = str(header.relative_to(root / "include"))
    source = scratch / (name.replace("/", "__") + ".cc")
    text = f'#include "{name}"\n'
    if not source.exists() or source.read_text() != text:
        source.write_text(text)
    command = [*compiler, *FLAGS, "-I", str(root / "include"), str(source), "-o", str(source.with_suffix(".o"))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return ""
    return f"{header.relative_to(root)}: does not compile alone:\n{result.stderr}"


def check(root, scratch, compiler):
    scratch.mkdir(parents=True, exist_ok=True)
    headers = sorted((root / "include").rglob("*.h"))
    if not headers:
        return [f"{root / 'include'}: holds no header"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda header: compile_alone(header, root, scratch, compiler), headers)
        return [text for text in said if text]


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    root, scratch = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    compiler = [argument for argument in (*sys.argv[4:], sys.argv[3]) if argument]
    problems = check(root, scratch, compiler)
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
