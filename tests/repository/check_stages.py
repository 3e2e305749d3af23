"""Checks that `make test` runs every test in at least one of its stages.

usage: check_stages.py ROOT

Takes the stages from the Makefile, and asks ctest which tests the build of each stage knows and which of them
its test preset runs. Exits with 77 where the build of a stage is not configured; `make test` configures all
of them first.
"""

import json
import pathlib
import re
import subprocess
import sys

RECIPE = re.compile(r"^test:.*\n((?:\t.*\n)+)", re.MULTILINE)
STAGE = re.compile(r"^\t\$\(call stage,([\w-]+),[^,)]*(?:,([\w-]+))?\)", re.MULTILINE)


def stages(makefile):
    """Pairs of a configure preset and a test preset."""
    recipe = RECIPE.search(makefile)
    return [(preset, tests or preset) for preset, tests in STAGE.findall(recipe.group(1) if recipe else "")]


def tests(root, *which):
    command = ["ctest", *which, "--show-only=json-v1"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return {test["name"] for test in json.loads(result.stdout)["tests"]}


def check(root):
    of_test = stages((root / "Makefile").read_text())
    if not of_test:
        return ["Makefile: `test` has no $(call stage,…)"]
    missing = [preset for preset, _ in of_test if not (root / "build" / preset / "build.ninja").exists()]
    if missing:
        print(f"build/{', build/'.join(missing)}: not configured; run cmake --preset {missing[0]}")
        sys.exit(77)
    known, run = {}, set()
    for preset, test_preset in of_test:
        for name in tests(root, "--test-dir", root / "build" / preset):
            known.setdefault(name, preset)
        run |= tests(root, "--preset", test_preset)
    return [f"{name}: no stage of `make test` runs it; build/{preset} has it. Give it a stage "
            "(ashlar_test(… STAGES …))" for name, preset in sorted(known.items()) if name not in run]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problems = check(pathlib.Path(sys.argv[1]).resolve())
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
