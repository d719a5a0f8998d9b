"""Commands for gdb on a board that runs Bulkhead; `attach.gdb` beside it loads them.

bulkhead vcpus          every vCPU: its pCPU, what it does, where it is
bulkhead vm NAME [N]    go to vCPU N of a VM (0 if left out) with the symbols of its program
bulkhead vcpu NAME [N]  everything that EL2 knows about a vCPU
bulkhead el2            symbols of EL2 alone
bulkhead boot           symbols of EL2 where the loader put it, for what runs before its MMU is on
"""

import json
import os
import re

import gdb

SYSTEM = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "system.json")))
PAGE = 4096
# Registers of a vCPU that does not have its pCPU (el2/src/hw/switch.s): which double words are these.
KEPT_SP_EL0, KEPT_SP_EL1, KEPT_ELR, KEPT_SPSR = 15, 16, 24, 25
HCR_VM = 1


class Physical:
    """While it is entered, gdb reads physical memory: at EL1 its addresses would be the guest's."""

    def __enter__(self):
        self.set(1)
        return gdb.selected_inferior()

    def __exit__(self, *_):
        self.set(0)

    def set(self, mode):
        gdb.execute(f"maintenance packet Qqemu.PhyMemMode:{mode}", to_string=True)


def register(name):
    return int(gdb.parse_and_eval(f"${name}")) & (2**64 - 1)


def threads():
    return sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num)


def level():
    """Exception level of the selected thread."""
    return (register("cpsr") >> 2) & 3


def on_pcpu(thread):
    """The vCPU whose registers a pCPU has: its VM's tag and its number in the VM; None for nobody's."""
    thread.switch()
    vmid = (register("VTTBR_EL2") >> 48) & 0xFFFF
    # Before its first VM a pCPU has no stage 2.
    if not register("HCR_EL2") & HCR_VM or not vmid:
        return None
    return vmid, register("VMPIDR_EL2") & 0xFF


def state(row):
    """The structure that EL2 has for a vCPU, read from its pool."""
    kind = gdb.lookup_type("bulkhead_el2::vcpu::Vcpu")
    with Physical() as memory:
        return gdb.Value(bytes(memory.read_memory(row["state"], kind.sizeof)), kind)


def find(name, number):
    for vm in SYSTEM["vms"]:
        if vm["name"] == name:
            for row in vm["vcpus"]:
                if row["number"] == number:
                    return vm, row
            raise gdb.GdbError(f"{name} has vCPUs 0 to {len(vm['vcpus']) - 1}")
    names = ", ".join(vm["name"] for vm in SYSTEM["vms"])
    raise gdb.GdbError(f"there is no VM `{name}`; there are {names}")


def words(text):
    """NAME and number of a vCPU."""
    parts = gdb.string_to_argv(text)
    if not parts or len(parts) > 2 or (len(parts) == 2 and not parts[1].isdigit()):
        raise gdb.GdbError("name a VM, and the number of a vCPU if it is not 0")
    return parts[0], int(parts[1]) if len(parts) == 2 else 0


class Symbols:
    """Whose symbols gdb has besides those of EL2: guests may lie at the same addresses, so one at a time."""

    extra = None

    @classmethod
    def use(cls, file, offset=0):
        if cls.extra:
            gdb.execute(f"remove-symbol-file {cls.extra}", to_string=True)
            cls.extra = None
        if file:
            quoted = "'" + file + "'"
            gdb.execute(f"add-symbol-file {quoted} -o {offset:#x}", to_string=True)
            cls.extra = quoted


class Guest:
    """Sees with the symbols of a VM, then with those that were there."""

    def __init__(self, vm):
        self.vm = vm

    def name(self, pc):
        before = Symbols.extra
        program = self.vm["program"]
        if program and before != "'" + program + "'":
            Symbols.use(program)
        symbol = gdb.execute(f"info symbol {pc:#x}", to_string=True).split(" in section")[0].strip()
        # Rust puts a hash behind the names of its functions.
        return "" if symbol.startswith("No symbol") else re.sub(r"::h[0-9a-f]{16}", "", symbol)


class Bulkhead(gdb.Command):
    __doc__ = __doc__

    def __init__(self):
        super().__init__("bulkhead", gdb.COMMAND_STATUS, gdb.COMPLETE_NONE, True)


class Vcpus(gdb.Command):
    """Every vCPU: its pCPU, what it does, where it is."""

    def __init__(self):
        super().__init__("bulkhead vcpus", gdb.COMMAND_STATUS)

    def invoke(self, _argument, _tty):
        chosen = gdb.selected_thread()
        extra = Symbols.extra
        here = {}
        for thread in threads():
            vcpu = on_pcpu(thread)
            if vcpu:
                here[vcpu] = (thread, level(), register("pc"))
        rows = [("vCPU", "pCPU", "gdb thread", "does", "pc of the guest", "in")]
        for vm in SYSTEM["vms"]:
            for row in vm["vcpus"]:
                rows.append(self.row(vm, row, here.get((vm["vmid"], row["number"]))))
        Symbols.use(extra.strip("'") if extra else None)
        chosen.switch()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())

    def row(self, vm, row, now):
        name = f"{vm['name']}/{row['number']}"
        known = state(row)
        if int(known["id"]) != row["id"] or known["vm"] is None:
            return (name, str(row["pcpu"]), "", "has not been made", "", "")
        pcpu = str(int(known["index"]))
        if not bool(known["runs"]):
            return (name, pcpu, "", "is off", "", "")
        if now:
            thread, el, pc = now
            thread.switch()
            if el < 2:
                does = f"runs at EL{el}"
            else:
                pc = register("ELR_EL2")
                does = "is paused" if bool(known["stands"]) else "is with EL2"
            number = str(thread.num)
        else:
            kept = known["context"]["registers"]["system"]
            pc = int(kept[KEPT_ELR])
            does = "is paused" if bool(known["stands"]) else "does not have its pCPU"
            number = ""
        return (name, pcpu, number, does, f"{pc:#x}", Guest(vm).name(pc))


class Vm(gdb.Command):
    """Go to a vCPU of a VM, with the symbols of its program: bulkhead vm NAME [N]."""

    def __init__(self):
        super().__init__("bulkhead vm", gdb.COMMAND_STATUS)

    def invoke(self, argument, _tty):
        vm, row = find(*words(argument))
        Symbols.use(vm["program"])
        told = vm["program"] or "no symbols: name a file with `bulkhead run --symbols`"
        chosen = gdb.selected_thread()
        for thread in threads():
            if on_pcpu(thread) == (vm["vmid"], row["number"]):
                where = "at EL2 on its behalf" if level() >= 2 else f"at EL{level()}"
                print(f"{vm['name']}/{row['number']}: thread {thread.num}, {where}; {told}")
                return
        chosen.switch()
        print(f"{vm['name']}/{row['number']}: does not have its pCPU now; {told}")


class Vcpu(gdb.Command):
    """Everything that EL2 knows about a vCPU: bulkhead vcpu NAME [N]. General-purpose registers are those of its
    last exit."""

    def __init__(self):
        super().__init__("bulkhead vcpu", gdb.COMMAND_STATUS)

    def invoke(self, argument, _tty):
        vm, row = find(*words(argument))
        known = state(row)
        kept = known["context"]["registers"]["system"]
        print(f"frame = {known['frame'].format_string()}")
        for field in ("id", "index", "number", "runs", "stands", "attention", "slot"):
            print(f"{field} = {known[field].format_string()}")
        extra = Symbols.extra
        stats = known["stats"]
        exits = int(stats["exits"])
        first, last = stats["last"].type.range()
        print(f"exits = {exits}; the last of them:")
        for back in range(min(exits, last - first + 1)):
            seen = stats["last"][(exits - 1 - back) % (last - first + 1)]
            pc, syndrome = int(seen["pc"]), int(seen["syndrome"])
            print(f"  from {pc:#x}, ESR {syndrome:#010x} (EC {syndrome >> 26 & 63:#04x})  {Guest(vm).name(pc)}".rstrip())
        Symbols.use(extra.strip("'") if extra else None)
        print(f"when it left its pCPU last: ELR {int(kept[KEPT_ELR]):#x}, SPSR {int(kept[KEPT_SPSR]):#x}, "
              f"SP_EL0 {int(kept[KEPT_SP_EL0]):#x}, SP_EL1 {int(kept[KEPT_SP_EL1]):#x}")


class El2(gdb.Command):
    """Symbols of EL2 alone."""

    def __init__(self):
        super().__init__("bulkhead el2", gdb.COMMAND_STATUS)

    def invoke(self, _argument, _tty):
        Symbols.use(None)


class Boot(gdb.Command):
    """Symbols of EL2 where the loader put it, for what runs before its MMU is on. Breakpoints get both places."""

    def __init__(self):
        super().__init__("bulkhead boot", gdb.COMMAND_STATUS)

    def invoke(self, _argument, _tty):
        Symbols.use(SYSTEM["el2"], SYSTEM["base"] - SYSTEM["link"])


class Frame:
    """Prints the registers of a guest as registers."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        registers = self.value[self.value.type.fields()[0].name]
        rows = []
        for first in range(0, 31, 4):
            cells = (f"x{n:<2} {int(registers[n]):#018x}" for n in range(first, min(first + 4, 31)))
            rows.append("  " + "  ".join(cells))
        return "registers of the guest\n" + "\n".join(rows)


def printers(value):
    return Frame(value) if str(value.type.strip_typedefs()) == "bulkhead_el2::vcpu::Frame" else None


gdb.pretty_printers.append(printers)
for command in (Bulkhead, Vcpus, Vm, Vcpu, El2, Boot):
    command()
