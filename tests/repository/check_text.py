"""Checks the text of every file that git tracks, or would track.

usage: check_text.py ROOT

Rules:
  space     no spaces, tabs or carriage returns at the end of a line
  path      no absolute path of somebody's machine
  registry  no host that packages or images are fetched from; tools know their own
"""

import pathlib
import re
import subprocess
import sys

# Written in pieces, so that this file passes its own check.
MACHINE_FOLDERS = "|".join(("work", "root", "home", "Users"))
MACHINE_PATH = re.compile(r"(?<![\w.}$)/*-])/(?:" + MACHINE_FOLDERS + r")(?![\w-])")
REGISTRY = re.compile(
    "|".join(
        (
            r"\bregistry[.-][\w-]+\.[a-z]{2,}",
            r"\b(?:docker|ghcr|quay|nvcr|gcr)\.io\b",
            r"\bfiles\.python" + r"hosted\.org\b",
            r"\bpypi\.org/" + r"simple\b",
            r"\b[\w-]*(?:artifactory|nexus)[\w-]*\.[\w.-]*[a-z]{2,}",
            r"\b[\w-]+\.(?:internal|corp|intranet)\b(?=[:/])",
        )
    )
)
RULES = (
    (re.compile(r"[ \t\r]$"), "space: white space at the end of the line"),
    (MACHINE_PATH, "path: an absolute path of one machine"),
    (REGISTRY, "registry: the host of a package registry"),
)


def files(root):
    """What git tracks or would track; every file where there is no git."""
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    ) if (root / ".git").exists() else None
    if listed is not None and listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
        return sorted({root / name for name in names})
    return sorted(path for path in root.rglob("*") if ".git" not in path.parts and "build" not in path.parts)


def check(root):
    problems = []
    for path in files(root):
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        if b"\0" in data:
            continue
        for at, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            for pattern, rule in RULES:
                match = pattern.search(line)
                if match:
                    found = f" ({match[0]})" if match[0].strip() else ""
                    problems.append(f"{path.relative_to(root)}:{at}: {rule}{found}")
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
