"""What the drivers in bench/peers share: building our side, running programs, comparing results, tables."""

import argparse
import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys

PEERS = pathlib.Path(__file__).resolve().parent
ROOT = PEERS.parent.parent
BUILD = ROOT / "build" / "peers"
PRESET = "release"


class Failure(Exception):
    """Ends the run with a sentence and an exit status."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


def words(command):
    return [str(part) for part in command]


def run_checked(command, what, **kwargs):
    if subprocess.run(words(command), cwd=ROOT, **kwargs).returncode != 0:
        raise Failure(f"{what} failed: {' '.join(words(command))}")


def find_tool(name, toolchain, purpose, extra=()):
    """The path of a program, or one sentence that says what is missing and what for."""
    found = shutil.which(name) or next((str(p) for p in extra if os.access(p, os.X_OK)), None)
    if not found:
        raise Failure(f"{name} was not found: {toolchain} is needed to {purpose}.", 2)
    return found


def build_ours(target):
    """Builds one of our programs in the release preset and returns its path."""
    cmake = find_tool("cmake", "CMake (3.25 or newer)", f"build Ashlar's side, {target}")
    folder = ROOT / "build" / PRESET
    if not (folder / "build.ninja").exists():
        run_checked([cmake, "--preset", PRESET], "configuring Ashlar", stdout=sys.stderr)
    known = subprocess.run(words([cmake, "--build", folder, "--target", "help"]), cwd=ROOT,
                           capture_output=True,
                           text=True)
    if known.returncode == 0 and f"{target}: " not in known.stdout:
        raise Failure(f"Ashlar's side is not there: {target} is no target of the {PRESET} preset. "
                      "Use --only rival to measure the rival alone.", 2)
    run_checked([cmake, "--build", folder, "--target", target], "building Ashlar's side", stdout=sys.stderr)
    return folder / "bin" / target


def find_cargo(crate):
    return find_tool("cargo", "the Rust toolchain (1.88 or newer)",
                     f"build the rival's harness, bench/peers/{crate}",
                     [pathlib.Path.home() / ".cargo" / "bin" / "cargo"])


def build_crate(crate, program):
    """Builds a rival's harness for this machine and returns the path of its program."""
    target = BUILD / "cargo"
    environment = dict(os.environ, RUSTFLAGS="-C target-cpu=native", CARGO_TARGET_DIR=str(target))
    run_checked([find_cargo(crate), "build", "--release", "--locked", "--manifest-path",
                 PEERS / crate / "Cargo.toml"], "building the rival's harness", env=environment,
                stdout=sys.stderr)
    return target / "release" / program


def check_python(folder):
    """Sees whether this Python can hold the packages of a rival, whose harness is in `folder`."""
    if sys.version_info < (3, 11) or platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Failure("the rival's packages are locked for Linux x86_64 and Python 3.11 or newer; this is "
                      f"{platform.system()} {platform.machine()}, Python {platform.python_version()}.", 2)
    for module in ("venv", "ensurepip"):
        if not importlib.util.find_spec(module):
            raise Failure(f"Python has no module {module} (Debian: python3-venv): it is needed to install "
                          f"the rival, {folder}.", 2)


def install_packages(venv, requirements, message):
    """Makes a virtual environment, unless it is there with the packages of today's lock file; returns its
    Python."""
    python = venv / "bin" / "python"
    stamp = venv / "installed"
    wanted = f"{platform.python_version()} {hashlib.sha256(requirements.read_bytes()).hexdigest()}\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(message, file=sys.stderr)
        run_checked([sys.executable, "-m", "venv", "--clear", venv], "making the virtual environment")
        run_checked([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                     "--no-cache-dir", "--no-deps", "--requirement", requirements],
                    "installing the rival", stdout=sys.stderr)
        stamp.write_text(wanted)
    return python


def run_program(command, absent_status=None, **kwargs):
    """The JSON lines that a program prints; nothing when it ends with `absent_status`."""
    command = words(command)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **kwargs)
    if absent_status is not None and done.returncode == absent_status:
        return []
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stderr.strip()}")
    try:
        lines = [json.loads(line) for line in done.stdout.splitlines()]
    except json.JSONDecodeError as error:
        raise Failure(f"{' '.join(command)} printed no JSON line "
                      f"({error}):\n{done.stdout.strip()}") from error
    if not lines:
        raise Failure(f"{' '.join(command)} printed nothing")
    return lines


def require_equal(case, ours, rival, fields):
    """Fails with the parts in which two results differ: `check`, key by key, and the named fields."""
    left, right = ({**dict(part.split("=", 1) for part in side["check"].split()),
                    **{f: side[f] for f in fields}}
                   for side in (ours, rival))
    parts = [f"  {key}: ours {left.get(key, 'absent')}, rival {right.get(key, 'absent')}"
             for key in dict.fromkeys([*left, *right]) if left.get(key) != right.get(key)]
    if parts:
        raise Failure(f"{case}: the results differ\n" + "\n".join(parts))


def compare(row, target):
    """Adds the ratios of a row, run by run, and the verdict, when both sides were measured."""
    if "ours" in row and "rival" in row:
        row["ratios"] = [rival / ours for ours, rival in zip(row["ours"], row["rival"])]
        row["ratio"] = statistics.median(row["ratios"])
        row["target"] = target
        row["ok"] = None if target is None else row["ratio"] >= target
    return row


def spread(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}}..{max(values):{form}})"


# The columns that every table ends with.
FIGURES_HEAD = ["ours: median (min..max)", "rival: median (min..max)", "ratio: median (min..max)",
                "target", ""]
FIGURES_WIDTHS = [25, 25, 24, 6, 4]


def figures_cells(row):
    cells = [spread(row[side], ".1f") if side in row else "-" for side in ("ours", "rival")]
    cells.append(spread(row["ratios"], ".2f") if "ratios" in row else "-")
    cells.append(f">={row['target']}x" if row.get("target") else "-")
    cells.append({True: "ok", False: "MISS", None: ""}[row.get("ok")])
    return cells


def table_line(cells, widths):
    return "  ".join(str(cell).ljust(width) for cell, width in zip(cells, widths)).rstrip()


def print_verdict(rows):
    compared = [row for row in rows if "ratios" in row]
    judged = [row["ok"] for row in compared if row["ok"] is not None]
    if compared:
        print(f"{len(compared)} lines compared, results equal on both sides; "
              f"{sum(judged)} of {len(judged)} targets reached")


def write_json(path, report):
    if path:
        pathlib.Path(path).write_text(json.dumps(report, indent=1) + "\n")


def make_parser(description, quick):
    """A parser with the options that every driver has; `quick` says what --quick does beside 3 runs."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="interleaved runs per case (default 9)")
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--check", action="store_true", help="only see whether the toolchains are here")
    parser.add_argument("--only", choices=["ours", "rival"], help="run one side alone, without ratios")
    parser.add_argument("--quick", action="store_true", help=f"{quick}, unless told otherwise")
    return parser


def settle_runs(parser, args):
    args.runs = args.runs if args.runs is not None else (3 if args.quick else 9)
    if args.runs < 1:
        parser.error(f"--runs must be at least 1, got {args.runs}")


def choose(parser, option, text, known):
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            parser.error(f"{option}: {name} is none of {', '.join(known)}")
    return names


def guarded(main):
    """Runs main; a Failure becomes a sentence and its exit status."""
    try:
        main()
    except Failure as failure:
        print(f"bench/peers: {failure}", file=sys.stderr)
        sys.exit(failure.status)
    except KeyboardInterrupt:
        sys.exit(130)
