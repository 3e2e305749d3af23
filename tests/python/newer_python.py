"""Builds the wheel for the newest other Python of this machine, and runs the tests of the package there.

usage: newer_python.py --source FOLDER --prefix FOLDER --scratch FOLDER

Run by the interpreter of build/python-venv: the pure packages there that build wheels are lent to the other
one, so nothing is downloaded for that. The tests need pytest and numpy for the other one, which pip
installs; where it cannot, a short program uses the package instead, and the output says so. Exit status 77:
skipped, with the reason. A second compile of the module is too long for every run: it happens under `make
test-python` and `make test-long`, which set ASHLAR_NEWER_PYTHON.
"""

import argparse
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

SKIPPED = 77
OLDEST = (3, 12)
PURE_PACKAGES = ("nanobind", "scikit_build_core", "pathspec", "packaging")

USE = """
import sys
import ashlar

hashes = ashlar.SequenceHasher().hash_blocks(range(64), 16)
assert hashes.sequence[0].chain == 15310707395893867146
assert memoryview(hashes.sequence).shape == (4, 2)
manager = ashlar.BlockManager(8)
with manager.register(manager.allocate(4).stage(hashes.sequence)) as blocks:
    assert len(blocks) == 4
with manager.match(list(hashes.sequence)) as found:
    assert len(found) == 4
try:
    found.pop()
except ashlar.UsedGuard:
    pass
with ashlar.RequestSequence(manager, list(range(70))) as request:
    assert request.match_prefix() == 64
    request.schedule_prefill(6)
    request.apply_prefill(1)
    request.schedule_decode()
    request.apply_decode(2)
    assert len(request) == 72
assert manager.available == 8
print("ashlar", ashlar.__version__, "works in Python", sys.version.split()[0])
"""


def skip(reason):
    print(f"SKIPPED: {reason}")
    return SKIPPED


def candidates():
    """(version, interpreter) of every Python that may do, the newest first."""
    folders = [pathlib.Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += sorted((pathlib.Path.home() / ".pyenv" / "versions").glob("*/bin"))
    found = []
    for folder in folders:
        for path in folder.glob("python3.*"):
            match = re.fullmatch(r"python3\.(\d+)", path.name)
            if not match or not os.access(path, os.X_OK):
                continue
            version = (3, int(match.group(1)))
            if version >= OLDEST and version != sys.version_info[:2]:
                found.append((version, path))
    return sorted(found, key=lambda item: item[0], reverse=True)


def works(python):
    """Whether it starts, and has pip, venv and its headers. What pyenv leaves in PATH may not start."""
    check = ("import os, pip, sysconfig, venv; "
             "print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))")
    done = subprocess.run([python, "-c", check], capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == "True"


def run(command, **options):
    print("+", " ".join(str(part) for part in command), flush=True)
    subprocess.run(command, check=True, **options)


def install_test_tools(python):
    """Of the versions that build/python-venv has. False where there is no network, or no wheel."""
    wanted = [f"{name}=={importlib.metadata.version(name)}" for name in ("pytest", "numpy")]
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                           "--no-input", "--only-binary", ":all:", *wanted])
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--source", "--prefix", "--scratch"):
        parser.add_argument(name, type=lambda text: pathlib.Path(text).resolve(), required=True)
    options = parser.parse_args()
    if not any(os.environ.get(name) for name in ("ASHLAR_NEWER_PYTHON", "ASHLAR_TEST_SECONDS")):
        return skip("it compiles the module a second time; make test-python and make test-long run it")
    python = next((path for _, path in candidates() if works(path)), None)
    if python is None:
        return skip("no Python 3.12 or newer with headers and pip, beside the one that runs the tests")

    shutil.rmtree(options.scratch, ignore_errors=True)
    lent = options.scratch / "lent"
    lent.mkdir(parents=True)
    packages = pathlib.Path(sysconfig.get_path("purelib"))
    for name in PURE_PACKAGES:
        for path in [packages / name, *packages.glob(f"{name}-*.dist-info")]:
            (lent / path.name).symlink_to(path)
    config = next(options.prefix.rglob("ashlarConfig.cmake")).parent
    defines = {"ashlar_DIR": config, "CMAKE_CXX_FLAGS_RELEASE": "-O0"}
    if shutil.which("ccache"):
        defines["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    settings = [f"--config-settings=cmake.define.{name}={value}" for name, value in defines.items()]
    wheels = options.scratch / "wheels"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-index", "--no-deps")
    run([python, "-m", "pip", "wheel", options.source, *quiet, "--no-build-isolation", "--wheel-dir", wheels,
         f"--config-settings=build-dir={options.scratch / 'build'}", *settings],
        env={**os.environ, "PYTHONPATH": str(lent)})
    venv = options.scratch / "venv"
    run([python, "-m", "venv", venv])
    run([venv / "bin" / "python3", "-m", "pip", "install", *quiet, *wheels.glob("ashlar-*.whl")])
    run([venv / "bin" / "python3", "-B", "-W", "error", "-c", USE])
    run([venv / "bin" / "python3", "-m", "ashlar", "--version"])
    if not install_test_tools(venv / "bin" / "python3"):
        print("NOT RUN: tests/python, since pip installs no pytest and numpy for this Python")
        return 0
    run([venv / "bin" / "python3", "-B", "-m", "pytest", "-p", "no:cacheprovider",
         options.source / "tests" / "python"], cwd=options.source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
