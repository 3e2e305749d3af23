"""`python -m ashlar` is the command-line program."""

import os
import sys
from pathlib import Path


def main() -> int:
    program = Path(__file__).parent / "bin" / "ashlar"
    if not program.exists():
        print(f"ashlar: this package was built without the program: {program} is not there", file=sys.stderr)
        return 1
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
