"""Commands for gdb on a board that runs Bulkhead; `attach.gdb` beside it loads them.

bulkhead vcpus                   every vCPU: its pCPU, what it does, where it is
bulkhead vcpu NAME [N]           everything about vCPU N of a VM (0 if left out), whether it has its pCPU or not
bulkhead devices                 every virtio device: what its driver and who serves it do, what is under way
bulkhead vm NAME [N]             go to a vCPU with the symbols of its program; of a Linux, say where its kernel is
bulkhead break NAME [N] PLACE    stop where this VM comes to an address, function or FILE:LINE, and no other VM
bulkhead until NAME [N]          go on until a vCPU that is away from its pCPU is back in its guest
bulkhead symbols NAME FILE       take the symbols of a VM from a file
bulkhead el2                     symbols of EL2 alone
bulkhead boot                    symbols of EL2 where the loader put it, for what runs before its MMU is on
"""

import os
import re
import sys

import gdb

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from bulkhead_board import ABORTS, CLASSES, EL1, SYSTEM, State, devices, level, owner, owners, pstate, state, vcpu_of, vm_named
from bulkhead_guest import Program, Symbols, kernel, named, offset

# States of a list register.
HELD = ("", "pending", "active", "active and pending")


def words(text):
    """NAME and number of a vCPU: its VM and its row."""
    parts = gdb.string_to_argv(text)
    if not parts or len(parts) > 2 or (len(parts) == 2 and not parts[1].isdigit()):
        raise gdb.GdbError("name a VM, and the number of a vCPU if it is not 0")
    vm = vm_named(parts[0])
    return vm, vcpu_of(vm, int(parts[1]) if len(parts) == 2 else 0)


def show(rows):
    """Prints a table."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def use_symbols(vm):
    """The symbols of a VM where its program is; says what there is."""
    moved, why = offset(vm)
    if why:
        Symbols.use(None)
        return why
    Symbols.use(vm["program"], moved)
    if not vm["program"]:
        return "no symbols: name a file with `bulkhead symbols`"
    return vm["program"] + (f", moved by {moved:#x}" if moved else "")


class Bulkhead(gdb.Command):
    __doc__ = __doc__

    def __init__(self):
        super().__init__("bulkhead", gdb.COMMAND_STATUS, gdb.COMPLETE_NONE, True)


class Vcpus(gdb.Command):
    """Every vCPU: its pCPU, what it does, where it is."""

    def __init__(self):
        super().__init__("bulkhead vcpus", gdb.COMMAND_STATUS)

    def invoke(self, _argument, _tty):
        here = owners()
        rows = [("vCPU", "pCPU", "gdb thread", "does", "pc of the guest", "in")]
        for vm in SYSTEM["vms"]:
            moved = None
            for row in vm["vcpus"]:
                vcpu = State(vm, row, here.get((vm["vmid"], row["number"])))
                if moved is None:
                    moved, _ = offset(vm)
                rows.append(self.row(vcpu, moved))
        show(rows)

    def row(self, vcpu, moved):
        where = (vcpu.name, str(vcpu.pcpu))
        if not vcpu.made or not vcpu.runs:
            return (*where, "", vcpu.does(), "", "")
        thread = str(vcpu.thread.num) if vcpu.thread else ""
        return (*where, thread, vcpu.does(), f"{vcpu.pc:#x}", named(vcpu.vm, vcpu.pc, moved))


class Devices(gdb.Command):
    """Every virtio device: what its driver and who serves it do, and the chains of its queues that are under way."""

    def __init__(self):
        super().__init__("bulkhead devices", gdb.COMMAND_STATUS)

    def invoke(self, _argument, _tty):
        rows = [("VM", "device", "registers", "interrupt", "its driver", "who serves it", "under way")]
        for one in devices():
            row = one.row
            interrupt = f"INTID {row['intid']}" if row["intid"] else "polled"
            where = (row["vm"], one.name, f"{row['ipa']:#x}", interrupt)
            rows.append((*where, one.driver(), one.backend(), ", ".join(one.queues())))
        if len(rows) == 1:
            print("no VM has one")
            return
        show(rows)


class Vm(gdb.Command):
    """Go to a vCPU of a VM, with the symbols of its program: bulkhead vm NAME [N]. Of a Linux, say where its kernel is."""

    def __init__(self):
        super().__init__("bulkhead vm", gdb.COMMAND_STATUS)

    def invoke(self, argument, _tty):
        vm, row = words(argument)
        told = use_symbols(vm)
        vcpu = state(vm, row)
        if vcpu.thread:
            vcpu.thread.switch()
            where = f"thread {vcpu.thread.num}, " + (f"at EL{vcpu.el}" if vcpu.is_live() else "at EL2 on its behalf")
        else:
            where = f"{vcpu.does()}; `bulkhead vcpu` shows its registers, `bulkhead until` goes on until it is back"
        print(f"{vcpu.name}: {where}; {told}")
        if vm["linux"]:
            found = kernel(vm)
            place = f"is at {found.place:#x}" if found.place is not None else f"cannot be found: {found.why}"
            print(f"its kernel {place}; the image is at guest address {vm['entry']:#x}")


class Vcpu(gdb.Command):
    """Everything about a vCPU, whether it has its pCPU or not: bulkhead vcpu NAME [N]."""

    def __init__(self):
        super().__init__("bulkhead vcpu", gdb.COMMAND_STATUS)

    def invoke(self, argument, _tty):
        vm, row = words(argument)
        vcpu = state(vm, row)
        print(f"{vcpu.name}, pCPU {vcpu.pcpu}: {vcpu.does()}")
        if not vcpu.made:
            return
        moved, _ = offset(vm)
        if vcpu.runs:
            self.registers(vcpu, moved)
            self.interrupts(vcpu)
        self.exits(vcpu, moved)

    def registers(self, vcpu, moved):
        print(f"  pc {vcpu.pc:#x}  {named(vcpu.vm, vcpu.pc, moved)}".rstrip())
        print(f"  sp {vcpu.sp:#x}  pstate {vcpu.pstate:#x} ({pstate(vcpu.pstate)})")
        for first in range(0, 31, 4):
            cells = (f"x{n:<2} {vcpu.general[n]:#018x}" for n in range(first, min(first + 4, 31)))
            print("  " + "  ".join(cells))
        if not vcpu.is_whole():
            print("  (x19 to x29 may be older: its last exit has left them with EL2)")
        cells = [f"{name}_el1 {vcpu.system[name + '_el1']:#x}" for name in EL1]
        cells += [f"{name} {vcpu.system[name]:#x}" for name in ("sp_el0", "sp_el1", "tpidr_el0")]
        for first in range(0, len(cells), 4):
            print("  " + "  ".join(cells[first : first + 4]))

    def interrupts(self, vcpu):
        held = vcpu.list_registers()
        if held is None:
            print("  its list registers are in the hardware, which does not show them to gdb")
        for number, entry in enumerate(held or []):
            if entry >> 62:
                physical = f", physical {entry >> 32 & 0x3FF}" if entry >> 61 & 1 else ""
                print(
                    f"  list register {number}: INTID {entry & 0xFFFF_FFFF} {HELD[entry >> 62]}, "
                    f"priority {entry >> 48 & 0xFF:#x}, group {entry >> 60 & 1}{physical}"
                )
        latched = vcpu.latched()
        if latched:
            print(f"  pending, in no list register: INTID {', '.join(map(str, latched))}")

    def exits(self, vcpu, moved):
        exits = list(vcpu.exits())
        print(f"  exits {int(vcpu.known['stats']['exits'])}; the last of them, newest first:")
        for number, (name, pc, syndrome) in enumerate(exits):
            # An interrupt has no syndrome; its INTID is there.
            if name.endswith("irq"):
                what = f"INTID {syndrome}"
            else:
                code = syndrome >> 26 & 63
                what = f"ESR {syndrome:#010x} ({CLASSES.get(code, f'EC {code:#04x}')})"
                what += self.address(vcpu, syndrome) if not number else ""
            print(f"    {name:<12} from {pc:#x}  {what}  {named(vcpu.vm, pc, moved)}".rstrip())

    def address(self, vcpu, syndrome):
        """What it accessed, if the hardware still has it."""
        fault = vcpu.fault
        if not fault or fault["ESR_EL2"] != syndrome or syndrome >> 26 & 63 not in ABORTS:
            return ""
        ipa = (fault["HPFAR_EL2"] & 0xFF_FFFF_FFF0) << 8 | fault["FAR_EL2"] & 0xFFF
        return f" FAR {fault['FAR_EL2']:#x} (guest address {ipa:#x})"


class Stop(gdb.Breakpoint):
    """A breakpoint in a VM: an address that others may have as well."""

    def __init__(self, vm, number, address, temporary=False):
        super().__init__(f"*{address:#x}", temporary=temporary)
        self.vmid, self.vcpu = vm["vmid"], number

    def stop(self):
        found = owner()
        return level() < 2 and found is not None and found[0] == self.vmid and self.vcpu in (None, found[1])


class Break(gdb.Command):
    """Stop where a VM comes to an address, function or FILE:LINE, and no other VM: bulkhead break NAME [N] PLACE. With N only that
    vCPU stops. `info breakpoints`, `delete` and `condition` know it as any other."""

    def __init__(self):
        super().__init__("bulkhead break", gdb.COMMAND_BREAKPOINTS)

    def invoke(self, argument, _tty):
        parts = gdb.string_to_argv(argument)
        if not 2 <= len(parts) <= 3 or (len(parts) == 3 and not parts[1].isdigit()):
            raise gdb.GdbError("name a VM, the number of a vCPU if only that one is to stop, and a place")
        vm, number = vm_named(parts[0]), int(parts[1]) if len(parts) == 3 else None
        if number is not None:
            vcpu_of(vm, number)
        address = self.address(vm, parts[-1])
        Stop(vm, number, address)
        print(f"(for {vm['name']} only)" if number is None else f"(for {vm['name']}/{number} only)")

    def address(self, vm, place):
        """The address of a place in a VM."""
        if re.fullmatch(r"\*?(0x[0-9a-fA-F]+|[0-9]+)", place):
            return int(place.lstrip("*"), 0)
        if not vm["program"]:
            raise gdb.GdbError(f"{vm['name']} has no symbols: name a file with `bulkhead symbols`, or give an address")
        moved, why = offset(vm)
        if why:
            raise gdb.GdbError(why)
        known = Program.of(vm["program"]).names.get(place)
        if known is not None:
            return known + moved & 2**64 - 1
        Symbols.use(vm["program"], moved)
        try:
            _, found = gdb.decode_line(place)
        except gdb.error:
            found = None
        own = [one.pc for one in found or () if one.symtab and one.symtab.objfile.filename == vm["program"]]
        if not own:
            raise gdb.GdbError(f"{vm['program']} has no `{place}`")
        return own[0]


class Until(gdb.Command):
    """Go on until a vCPU that is away from its pCPU, or for which EL2 works, is back in its guest: bulkhead until NAME [N]."""

    def __init__(self):
        super().__init__("bulkhead until", gdb.COMMAND_RUNNING)

    def invoke(self, argument, _tty):
        vm, row = words(argument)
        vcpu = state(vm, row)
        if not vcpu.made or not vcpu.runs:
            raise gdb.GdbError(f"{vcpu.name} {vcpu.does()}")
        if vcpu.is_live():
            vcpu.thread.switch()
            return
        Stop(vm, row["number"], vcpu.pc, temporary=True)
        gdb.execute("continue")


class NewSymbols(gdb.Command):
    """Take the symbols of a VM from a file: bulkhead symbols NAME FILE. For a Linux that is its vmlinux."""

    def __init__(self):
        super().__init__("bulkhead symbols", gdb.COMMAND_FILES)

    def invoke(self, argument, _tty):
        parts = gdb.string_to_argv(argument)
        if len(parts) != 2:
            raise gdb.GdbError("name a VM and a file")
        vm, path = vm_named(parts[0]), os.path.realpath(os.path.expanduser(parts[1]))
        try:
            Program.of(path)
        except OSError as why:
            raise gdb.GdbError(f"cannot read {path}: {why.strerror}")
        vm["program"] = path
        print(f"{vm['name']}: {use_symbols(vm)}")


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


def tell(event):
    """Whose guest has stopped; symbols of another VM would mislead."""
    found = owner()
    if level() >= 2 or found is None:
        return
    for vm in SYSTEM["vms"]:
        if vm["vmid"] == found[0]:
            known = Symbols.extra and Symbols.extra[0]
            other = known and known != vm["program"]
            print(f"{vm['name']}/{found[1]}" + (f" (symbols are those of {known}; see `bulkhead vm`)" if other else ""))


gdb.events.stop.connect(tell)
for command in (Bulkhead, Vcpus, Devices, Vm, Vcpu, Break, Until, NewSymbols, El2, Boot):
    command()
