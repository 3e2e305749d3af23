"""Checks what `pip install .` would compile: the extension and the program, and nothing beyond them.

usage: check_build.py SOURCE SCRATCH

Configures the package as pip does, without an installed library, and reads the build that comes of it.
"""

import pathlib
import shutil
import subprocess
import sys

WANTED = ("src/module.cc", "ashlar/apps/ashlar/", "ashlar/src/CMakeFiles/ashlar_tiers.dir/")
UNWANTED = ("/examples/", "/tests/", "/bench/", "/ashlar_c.dir/")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, scratch = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    shutil.rmtree(scratch, ignore_errors=True)
    run("cmake", "-G", "Ninja", "-S", source / "python", "-B", scratch, "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}", "-DSKBUILD_PROJECT_VERSION=0")
    compiled = [word for line in run("ninja", "-C", scratch, "-t", "commands", "all").splitlines()
                for word in line.split() if word.endswith(".o") and "CMakeFiles" in word]
    problems = [f"pip install . would compile {name}" for name in sorted(set(compiled))
                if any(part in f"/{name}" for part in UNWANTED)]
    problems += [f"pip install . would compile nothing of {part}" for part in WANTED
                 if not any(part in name for name in compiled)]
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
