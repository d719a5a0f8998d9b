"""Two Linux kernels that have moved themselves: does gdb find them, and are symbols right there? VMLINUX and KERNELS stand before."""

import gdb


for name, start, idle in KERNELS:
    text = said(f"bulkhead vm {name}")
    place = start - 0x1_0000
    check("where the kernel is", f"its kernel is at {place:#x};" in text, text)
    check("it says that it has no symbols", "no symbols" in text, text)
    said(f"bulkhead symbols {name} {VMLINUX}")
    said(f"bulkhead break {name} cpu_do_idle")
    said("continue")
    pc = int(gdb.parse_and_eval("$pc")) & 2**64 - 1
    check("the function", pc == idle, f"{pc:#x} is not {idle:#x}")
    symbol = said("info symbol $pc")
    check("gdb's own name for it", symbol.startswith("cpu_do_idle in section"), symbol)
    rows = said("bulkhead vcpus").splitlines()
    mine = [line for line in rows if line.startswith(f"{name}/") and "runs at EL1" in line]
    check("whose it is", len(mine) == 1 and mine[0].endswith("cpu_do_idle"), rows)
    said("delete")
check("they are at different places", KERNELS[0][1] != KERNELS[1][1], KERNELS)
