"""Runs a function in a child process: a crash, a hang or a kill there ends only the child.

The child is a fork, so modules that are imported already cost nothing. A fork inherits only the calling
thread: start nothing here before.
"""
import os
import signal
import sys
import traceback

LIMIT = 900  # seconds


def start(function, *arguments):
    """The child's process number. It exits with 0 when the function returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(LIMIT)  # SIGALRM ends a child that hangs
        function(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end(child):
    """Waits; returns the exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(function, *arguments):
    status = end(start(function, *arguments))
    if status == -signal.SIGALRM:
        raise AssertionError(f"not over after {LIMIT} s")
    assert status == 0, f"the process ended with {status}"
