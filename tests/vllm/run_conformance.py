"""Runs the conformance suite: a stock vLLM on our tiers, one line per case.

    run_conformance.py ASHLAR_PROGRAM [--list] [--only NAME ...] [--kills N] [--keep FOLDER]

`--only` takes names or parts of names. The cases are in cases_*.py; docs/guide/vllm_conformance.md has the
table. Engines are shared between cases where they can be, for each start takes half a minute.
"""
import argparse
import pathlib
import re
import signal
import sys
import tempfile
import time
import traceback

import cases_engine  # noqa: F401  each module registers its cases
import cases_guide  # noqa: F401
import cases_in_step  # noqa: F401
import cases_loads  # noqa: F401
import cases_pages  # noqa: F401
import cases_ranks  # noqa: F401
import cases_serve  # noqa: F401
import cases_settings  # noqa: F401
import cases_stored  # noqa: F401
import cases_told  # noqa: F401
import cases_units  # noqa: F401
import cases_values  # noqa: F401
from lab import CASES, Lab, Skipped


def chosen(parts):
    """By section: what an engine can no longer do after a reset of the connector comes before it."""
    names = [name for name in sorted(CASES, key=lambda name: name.partition(".")[0])
             if not parts or any(part in name for part in parts)]
    if not names:
        sys.exit(f"no case is named like {' or '.join(parts)}; --list shows all")
    return {name: CASES[name] for name in names}


def check_table():
    """The page has every case, and no other."""
    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guide" / "vllm_conformance.md"
    told = set(re.findall(r"`(\d\.[a-z0-9_]+)`", page.read_text()))
    for what, names in (("lacks", set(CASES) - told), ("has cases that do not exist:", told - set(CASES))):
        if names:
            sys.exit(f"{page} {what} {', '.join(sorted(names))}")


def run(lab, cases):
    """Returns the names of those that failed, and of those that were skipped with the reason."""
    failed, skipped = [], {}
    for name, function in cases.items():
        began = time.monotonic()
        try:
            function(lab)
            outcome = "passed"
        except Skipped as why:
            outcome = f"SKIPPED: {why}"
            skipped[name] = why
        except Exception:
            outcome = "FAILED"
            failed.append(name)
            traceback.print_exc()
        print(f"{name:<48} {time.monotonic() - began:6.1f} s  {outcome}", flush=True)
    return failed, skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the ashlar program")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--only", nargs="+", default=[], help="parts of names")
    parser.add_argument("--kills", type=int, default=50, help="how often a storing process is killed")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for models, logs and stores, kept")
    options = parser.parse_args()
    check_table()
    cases = chosen(options.only)
    if options.list:
        print("\n".join(cases))
        return 0
    # Engines have sessions of their own: whoever ends this program ends them through it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, prefix="ashlar-vllm-") as scratch:
        folder = options.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        lab = Lab(folder, str(pathlib.Path(options.program).resolve()), options.kills)
        try:
            failed, skipped = run(lab, cases)
        finally:
            lab.close()
    print(f"test-vllm: {len(cases) - len(failed) - len(skipped)} of {len(cases)} cases passed, "
          f"{len(skipped)} skipped, {len(failed)} failed, in {time.monotonic() - began:.0f} s")
    for name, why in skipped.items():
        print(f"test-vllm: skipped, not tested here: {name}: {why}")
    for name in failed:
        print(f"test-vllm: failed: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
