"""Symbols of guests, and where a Linux kernel is."""

import bisect
import mmap
import os
import re
import struct

import gdb

from bulkhead_board import Physical, State, owners

GRANULES = ({0: 12, 1: 16, 2: 14}, {1: 14, 2: 12, 3: 16})
SYMTAB, FUNCTION, NO_TYPE, ABSOLUTE = 2, 2, 0, 0xFFF1
# What is farther behind the last name is not in that function.
FARTHEST = 1 << 20
# Distances from the start of a kernel's image at which it is mapped, if it is: the first page need not be.
MAPPED = (0, 0x1_0000, 0x20_0000)


class Program:
    """Names in an ELF file."""

    files = {}

    @classmethod
    def of(cls, path):
        """The program at a path, read again if the file has changed."""
        about = os.stat(path)
        key = (path, about.st_mtime_ns, about.st_size)
        if key not in cls.files:
            cls.files[key] = cls(path)
        return cls.files[key]

    def __init__(self, path):
        names = {}
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:6] != b"\x7fELF\x02\x01":
                raise gdb.GdbError(f"{path} is no ELF file of 64 bits")
            (sections,) = struct.unpack_from("<Q", data, 40)
            size, count = struct.unpack_from("<HH", data, 58)
            headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + size * n) for n in range(count)]
            for kind, at, length, link in ((head[1], head[4], head[5], head[6]) for head in headers):
                if kind != SYMTAB:
                    continue
                strings = data[headers[link][4] :][: headers[link][5]]
                for name, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", data[at : at + length]):
                    if section in (0, ABSOLUTE) or info & 15 not in (FUNCTION, NO_TYPE):
                        continue
                    # `$x` and its kin mark what is code and what is data.
                    if strings[name : name + 1] not in (b"\0", b"$"):
                        names.setdefault(strings[name : strings.index(b"\0", name)].decode(errors="replace"), value)
        self.names = names
        self.places = sorted((value, name) for name, value in names.items())

    def name(self, address):
        """The name before an address, and how far behind it that is."""
        at = bisect.bisect_right(self.places, (address, "\U0010ffff"))
        if not at:
            return ""
        value, name = self.places[at - 1]
        if address - value > FARTHEST:
            return ""
        return demangled(name) + (f" + {address - value}" if address != value else "")


def demangled(name):
    if not name.startswith(("_ZN", "_R")):
        return name
    plain = gdb.execute(f"demangle -l rust -- {name}", to_string=True).strip()
    # Rust puts a hash behind the names of its functions.
    return re.sub(r"::h[0-9a-f]{16}$", "", plain)


class Symbols:
    """Whose symbols gdb has besides those of EL2: guests may lie at the same addresses, so one at a time."""

    extra = None

    @classmethod
    def use(cls, file, offset=0):
        wanted = file and (file, offset, os.stat(file).st_mtime_ns)
        if wanted == cls.extra:
            return
        if cls.extra:
            gdb.execute(f"remove-symbol-file '{cls.extra[0]}'", to_string=True)
            cls.extra = None
        if file:
            gdb.execute(f"add-symbol-file '{file}' -o {offset:#x}", to_string=True)
            cls.extra = wanted


def physical(vm, ipa):
    """Where in the board's memory a guest address of RAM is."""
    for first, at, size in vm["ram"]:
        if first <= ipa < first + size:
            return at + ipa - first
    return None


def guest_word(vm, ipa):
    at = physical(vm, ipa)
    if at is None:
        return None
    with Physical() as memory:
        return int.from_bytes(bytes(memory.read_memory(at, 8)), "little")


def translate(vcpu, address):
    """The guest address (IPA) of a virtual one, by the tables of a vCPU; None if these map nothing there (DDI 0487, D8.2)."""
    if not vcpu.system["sctlr_el1"] & 1:
        return address
    high, tcr = address >> 55 & 1, vcpu.system["tcr_el1"]
    granule = GRANULES[high].get(tcr >> (30 if high else 14) & 3)
    bits = 64 - (tcr >> (16 if high else 0) & 63)
    if granule is None or (address >> bits) not in (0, (1 << 64 - bits) - 1):
        return None
    stride = granule - 3
    left = -(-(bits - granule) // stride)
    table = vcpu.system["ttbr1_el1" if high else "ttbr0_el1"] & 0xFFFF_FFFF_FFFE
    address &= (1 << bits) - 1
    while left:
        left -= 1
        shift = granule + stride * left
        mask = (1 << stride) - 1 if shift + stride <= bits else (1 << bits - shift) - 1
        entry = guest_word(vcpu.vm, table + (address >> shift & mask) * 8)
        if entry is None or not entry & 1 or (not left and not entry & 2):
            return None
        output = entry & 0xFFFF_FFFF_FFFF & ~((1 << granule) - 1)
        if not left or not entry & 2:
            return output & ~((1 << shift) - 1) | address & ((1 << shift) - 1)
        table = output
    return None


class Kernel:
    """Where the Linux of a VM is, which may have moved itself at its start (KASLR). Its image is where the plan has put it; the
    vectors in it are where VBAR_EL1 says; the difference holds for all of it."""

    def __init__(self, vcpu):
        self.place, self.why = None, None
        if not vcpu.made or not vcpu.runs:
            self.why = "it does not run"
        elif not vcpu.system["sctlr_el1"] & 1:
            self.why = "it has not moved to its place yet"
        else:
            self.look(vcpu)

    def look(self, vcpu):
        image, vectors = vcpu.vm["entry"], vcpu.system["vbar_el1"]
        at = translate(vcpu, vectors)
        if at is not None:
            place = vectors - (at - image) & 2**64 - 1
            if any(translate(vcpu, place + distance) == image + distance for distance in MAPPED):
                self.place = place
                return
        self.why = "a program of it runs, from which its kernel is hidden: stop in the kernel, or ask again"


def kernel(vm):
    """Where the Linux of a VM is, as the first of its vCPUs says that knows."""
    found = None
    here = owners()
    for row in vm["vcpus"]:
        found = Kernel(State(vm, row, here.get((vm["vmid"], row["number"]))))
        if found.place is not None:
            break
    return found


def offset(vm):
    """How far from where they are linked the symbols of a VM are; none if that is not known yet, and why."""
    if not vm["linux"] or not vm["program"]:
        return 0, None
    linked = Program.of(vm["program"]).names.get("_text")
    if linked is None:
        return None, f"{vm['program']} is no vmlinux: it has no symbol `_text`"
    found = kernel(vm)
    if found.place is None:
        return None, f"where the kernel of {vm['name']} is cannot be said: {found.why}"
    return found.place - linked, None


def named(vm, address, moved):
    """The function of a VM's program at an address."""
    if not vm["program"] or moved is None:
        return ""
    return Program.of(vm["program"]).name(address - moved & 2**64 - 1)
