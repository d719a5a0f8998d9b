"""Two VMs have a disk each, one with a request at a time and one with eight: is what gdb says about them so?"""

import gdb

STOPS = 12


def under_way(name):
    """Chains of the first queue, and its size."""
    words = row(name, "bulkhead devices").rsplit("queue 0: ", 1)[-1].split()
    return int(words[0]), int(words[2])


for name, unit in (("one", "disk 0"), ("many", "disk 1")):
    line = row(name, "bulkhead devices")
    check("before the start", unit in line and "service is not there" in line and "queue" not in line, line)
for name in ("one", "many"):
    # Where it waits for an answer, with requests under way or just answered.
    said(f"bulkhead break {name} disk::User::wait")
seen = {"one": set(), "many": set()}
for _ in range(STOPS):
    said("continue")
    for name, counts in seen.items():
        line = row(name, "bulkhead devices")
        if "drives it" in line:
            check("who serves it", "service serves session" in line and "0xa000000" in line and "INTID" in line, line)
            count, size = under_way(name)
            check("size of the queue", size and size & size - 1 == 0, line)
            counts.add(count)
check("one at a time", seen["one"] and max(seen["one"]) == 1, seen)
check("many at a time", 1 < max(seen["many"], default=0) <= 8, seen)
# What EL2 has about VMs lies behind its service threads.
for name in ("one", "many", "service"):
    line = row(f"{name}/0")
    check("a VM that is there", not any(words in line for words in ("off", "stops", "made")), line)
