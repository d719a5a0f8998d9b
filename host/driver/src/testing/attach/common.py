"""What scripts look with. What is wrong is a line that begins with FAIL."""

import gdb


def said(command):
    return gdb.execute(command, to_string=True)


def check(what, right, seen):
    if not right:
        print(f"FAIL {what}: {seen}")


def row(first, command="bulkhead vcpus"):
    """The line that begins so in what a command says."""
    return next(line for line in said(command).splitlines() if line.startswith(first))
