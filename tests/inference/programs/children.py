"""Children of a program by fork: everything is imported, so that one is at work in milliseconds."""

import os
import sys
import traceback
from collections.abc import Callable


def fork(work: Callable[[], object]) -> int:
    """Runs ``work`` in a child, which ends with status 0, or 1 and a traceback on standard error; its number."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            if status:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(status)
    return child


def wait(child: int) -> int:
    """The exit status of a child; minus a signal's number if that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
