"""Two VMs with the same program share a CPU: is what gdb says about each of them so?"""

import re

import gdb
from bulkhead_board import owner

PLACE = "bulkhead_guests::uart::load"
FIRST, SECOND = 0, 1
TRIES = 2000


def vm():
    """Whose registers the pCPU has."""
    vmids = [vm["vmid"] for vm in SYSTEM["vms"]]
    found = owner()
    return vmids.index(found[0]) if found else None


class Counted(gdb.Breakpoint):
    """Stops nobody."""

    def __init__(self, place):
        super().__init__(place)
        self.came = [0, 0]

    def stop(self):
        self.came[vm()] += 1
        return False


def shown(text):
    """Registers in what `bulkhead vcpu` says."""
    found = re.findall(r"\b(pc|sp|pstate|x\d+) +(0x[0-9a-f]+)", text)
    return {name: int(value, 16) for name, value in found}


check("nobody has been made", "has not been made" in row("first/0"), row("first/0"))
said(f"bulkhead break second {PLACE}")
counted = Counted(f"*{gdb.breakpoints()[0].location.lstrip('*')}")
stops = 0
while stops < 5 or counted.came[FIRST] < 5:
    said("continue")
    check("who stops", vm() == SECOND, f"stop {stops} is of {SYSTEM['vms'][vm()]['name']}")
    stops += 1
    if stops == TRIES or vm() != SECOND:
        check("both come there", False, counted.came)
        break
check("who runs", "runs at EL1" in row("second/0") and "uart::load" in row("second/0"), row("second/0"))

# One that waits: its registers are in memory, and the very same when it goes on.
for _ in range(TRIES):
    text = said("bulkhead vcpu first")
    if "older" not in text:
        break
    said("continue")
check("who waits", "first/0, pCPU 0: waits for its turn" in text, text)
before = shown(text)
check("all registers are shown", len(before) == 34, before)
said("delete")
said("bulkhead until first")
check("who is back", vm() == FIRST, row("first/0"))
for name, value in before.items():
    now = int(gdb.parse_and_eval(f"${'cpsr' if name == 'pstate' else name}")) & 2**64 - 1
    check(f"{name} of one that was away", now == value, f"{value:#x} was shown, {now:#x} it is")

# At EL2.
said("break data_exit")
said("continue")
rows = row("first/0") + "\n" + row("second/0")
check("EL2 works for one, the other waits", "is with EL2" in rows and "waits for its turn" in rows, rows)
