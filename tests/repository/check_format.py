"""Checks that every C++ file is as clang-format 19 writes it with .clang-format; `make format` makes it so.

usage: check_format.py ROOT [CLANG_FORMAT]

Without clang-format it exits with 77, which ctest shows as skipped: another version formats otherwise.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

FOLDERS = ("include", "src", "c", "apps", "examples", "bench", "tests")
SUFFIXES = {".h", ".cc", ".cu"}
SKIPPED = 77
FILES_PER_CALL = 40


def sources(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and "target" not in path.parts:
                yield path


def complaints(clang_format, root, paths):
    command = [clang_format, "--dry-run", "--Werror", "--ferror-limit=1", *paths]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return []
    found = [line for line in result.stderr.splitlines() if ": error: " in line]
    return [line.replace(f"{root}/", "").split(" [")[0] for line in found] or [result.stderr]


def check(root, clang_format):
    paths = list(sources(root))
    groups = [paths[i : i + FILES_PER_CALL] for i in range(0, len(paths), FILES_PER_CALL)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda group: complaints(clang_format, root, group), groups)
        return [line for lines in said for line in lines]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if len(sys.argv) == 2 or not sys.argv[2]:
        print("clang-format 19 is not installed (scripts/bootstrap test brings it)")
        sys.exit(SKIPPED)
    problems = check(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2])
    for problem in problems:
        print(problem)
    if problems:
        print("run `make format`")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
