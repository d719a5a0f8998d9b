"""What gdb sees of a board that runs Bulkhead: its pCPUs, and what EL2 knows about each vCPU."""

import json
import os

import gdb

SYSTEM = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "system.json")))
WORD = 2**64 - 1
HCR_VM = 1
# Classes of exceptions that guests cause most often (DDI 0487, ESR_ELx.EC).
CLASSES = {
    0x01: "WFI or WFE",
    0x16: "HVC",
    0x17: "SMC",
    0x18: "system register",
    0x20: "fetch abort",
    0x24: "data abort",
}
ABORTS = (0x20, 0x24)
# Registers of EL1 that are shown.
EL1 = ("sctlr", "tcr", "ttbr0", "ttbr1", "mair", "vbar", "esr", "far", "elr", "spsr", "tpidr", "contextidr")
# Others that are looked at.
OTHERS = ("sp_el0", "sp_el1", "tpidr_el0", "elr_el2", "spsr_el2")


class Physical:
    """While it is entered, gdb reads physical memory: at EL1 its addresses would be the guest's."""

    def __enter__(self):
        self.set(1)
        return gdb.selected_inferior()

    def __exit__(self, *_):
        self.set(0)

    def set(self, mode):
        gdb.execute(f"maintenance packet Qqemu.PhyMemMode:{mode}", to_string=True)


class Record:
    """A value of EL2 as bytes. gdb itself cannot index arrays of enumerations that are not in memory that it sees."""

    def __init__(self, kind, data):
        self.kind, self.data = kind.strip_typedefs(), data

    @classmethod
    def read(cls, name, pages):
        """The structure `name` in pages at these physical addresses."""
        kind = gdb.lookup_type(name)
        with Physical() as memory:
            data = b"".join(bytes(memory.read_memory(page, 4096)) for page in pages)
        return cls(kind, data[: kind.sizeof])

    def part(self, kind, at):
        return Record(kind, self.data[at : at + kind.sizeof])

    def __getitem__(self, key):
        if isinstance(key, int):
            kind = self.kind.target()
            return self.part(kind, key * kind.sizeof)
        field = next(field for field in self.kind.fields() if field.name == key)
        return self.part(field.type, field.bitpos // 8)

    def __len__(self):
        return self.kind.sizeof // self.kind.target().sizeof

    def __int__(self):
        return int.from_bytes(self.data, "little")

    def words(self):
        return [int.from_bytes(self.data[at : at + 8], "little") for at in range(0, len(self.data), 8)]

    def variant(self):
        """Name of the variant of an enumeration."""
        fields = self.kind.fields()
        if self.kind.code == gdb.TYPE_CODE_ENUM:
            return next(field.name.split("::")[-1] for field in fields if field.enumval == int(self))
        tag, names = fields[0], [field.name for field in fields[1:]]
        return names[int(self.part(tag.type, tag.bitpos // 8))]

    def is_some(self):
        """Of an `Option` that is a reference."""
        return any(self.data)


def register(name):
    """A register of the selected thread."""
    return int(gdb.parse_and_eval(f"${name}")) & WORD


def system_register(name):
    """A register of the selected thread by the name that Arm gives it. QEMU leaves `_EL1` out where AArch32 has it, too."""
    for known in (name.upper(), name.upper().removesuffix("_EL1")):
        try:
            return register(known)
        except gdb.error:
            # Not by this name.
            continue
    raise gdb.GdbError(f"this QEMU does not show {name}")


def threads():
    return sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num)


def level():
    """Exception level of the selected thread."""
    return (register("cpsr") >> 2) & 3


def owner():
    """The vCPU whose registers the pCPU of the selected thread has: its VM's tag and its number in the VM; None for nobody's."""
    vmid = (register("VTTBR_EL2") >> 48) & 0xFFFF
    # Before its first VM a pCPU has no stage 2.
    if not register("HCR_EL2") & HCR_VM or not vmid:
        return None
    return vmid, register("VMPIDR_EL2") & 0xFF


def owners():
    """The thread of gdb for each vCPU whose registers a pCPU has."""
    chosen = gdb.selected_thread()
    found = {}
    for thread in threads():
        thread.switch()
        vcpu = owner()
        if vcpu:
            found[vcpu] = thread
    chosen.switch()
    return found


def vm_named(name):
    for vm in SYSTEM["vms"]:
        if vm["name"] == name:
            return vm
    names = ", ".join(vm["name"] for vm in SYSTEM["vms"])
    raise gdb.GdbError(f"there is no VM `{name}`; there are {names}")


def vcpu_of(vm, number):
    for row in vm["vcpus"]:
        if row["number"] == number:
            return row
    raise gdb.GdbError(f"{vm['name']} has vCPUs 0 to {len(vm['vcpus']) - 1}")


def state(vm, row):
    """A vCPU as it is now."""
    return State(vm, row, owners().get((vm["vmid"], row["number"])))


def pstate(value):
    """PSTATE in words."""
    mode = "EL1h" if value & 0x1F == 5 else "EL1t" if value & 0x1F == 4 else "EL0" if value & 0x1F == 0 else "AArch32"
    masked = "".join(letter for letter, bit in zip("DAIF", (9, 8, 7, 6)) if value >> bit & 1)
    return f"{mode}, {masked} masked" if masked else mode


class State:
    """A vCPU at this moment, wherever its registers are: in its guest, in the hardware while EL2 runs, or in memory."""

    def __init__(self, vm, row, thread):
        """`thread` is that of the pCPU that has its registers, if one has."""
        self.vm, self.row, self.thread = vm, row, thread
        self.name = f"{vm['name']}/{row['number']}"
        self.known = Record.read("bulkhead_el2::vcpu::Vcpu", row["state"])
        # Before EL2 has made it there are zeros, which are also the number of the first one.
        self.made = int(self.known["id"]) == row["id"] and self.known["shared"].is_some()
        self.pcpu = int(self.known["index"]) if self.made else row["pcpu"]
        self.el, self.fault = None, None
        if not self.made:
            return
        self.power = Record.read("bulkhead_el2::vm::Vm", vm["state"])["life"]["power"]
        self.pcpu_state = Record.read("bulkhead_el2::pcpu::Pcpu", SYSTEM["pcpus"][self.pcpu])
        self.slot = int(self.known["slot"])
        self.runs = bool(int(self.known["runs"]))
        self.general = self.known["frame"].words()[:31]
        if thread:
            chosen = gdb.selected_thread()
            thread.switch()
            self.hardware()
            chosen.switch()
        else:
            # `el2/src/hw/switch.s` has put them there.
            words = self.known["context"]["registers"]["system"].words()
            self.system = {name: words[at] for name, at in SYSTEM["kept"].items()}
            self.pc, self.pstate = self.system["elr_el2"], self.system["spsr_el2"]
            self.sp = self.stack()

    def hardware(self):
        """Registers of a vCPU whose pCPU has them. While EL2 runs, the general-purpose ones are in the frame."""
        self.el = level()
        names = [f"{name}_el1" for name in EL1] + list(OTHERS)
        self.system = {name: system_register(name) for name in names}
        self.fault = {name: register(name) for name in ("ESR_EL2", "FAR_EL2", "HPFAR_EL2")}
        if self.is_live():
            self.pc, self.pstate, self.sp = register("pc"), register("cpsr"), register("sp")
            self.general = [register(f"x{number}") for number in range(31)]
            # The one in use is elsewhere in QEMU.
            self.system["sp_el1" if self.pstate & 0x1F == 5 else "sp_el0"] = self.sp
        else:
            self.pc, self.pstate = self.system["elr_el2"], self.system["spsr_el2"]
            self.sp = self.stack()

    def stack(self):
        """The stack pointer of the mode that it is in."""
        return self.system["sp_el1" if self.pstate & 0x1F == 5 else "sp_el0"]

    def is_live(self):
        """It executes its guest."""
        return self.el is not None and self.el < 2

    def is_whole(self):
        """x19 to x29 are known: most exits leave them where they are."""
        return self.is_live() or self.pcpu_state["resting"][self.slot].is_some()

    def scheduled(self):
        """What the scheduler of its pCPU has about it."""
        return self.pcpu_state["sched"]["slots"][self.slot]

    def does(self):
        """What it does and, if it does not run, why."""
        if not self.made:
            return "has not been made"
        if not self.runs:
            phase = int(self.power["phase"]) & 0xFF
            return {0: "is off: its VM has stopped", 1: "waits: its VM is made ready", 2: "is off"}.get(phase, "stops")
        if int(self.known["paused"]):
            return "is paused"
        if self.is_live():
            return f"runs at EL{self.el}"
        found = self.scheduled()["state"].variant()
        if found == "Running":
            return "is with EL2"
        if found == "Blocked":
            return "sleeps until its timer" if self.wakes() else "sleeps"
        if found == "Ready":
            return "has used up its time" if self.is_spent() else "waits for its turn"
        # A vCPU that has its pCPU to itself in the profile `static` is in no slot.
        return "moves to another pCPU" if self.pcpu_state["balancer"].is_some() else "is with EL2"

    def wakes(self):
        """It wakes by itself."""
        run_slot = self.pcpu_state["run_slots"][self.slot]
        return run_slot.variant() == "Some" and int(run_slot["Some"]["__0"]["wakes_at"]) != WORD

    def is_spent(self):
        """It waits for its next budget (`core/src/sched/slot.rs`, `waits_until`)."""
        slot = self.scheduled()
        policy = slot["policy"]
        if policy.variant() == "Server":
            left = int.from_bytes(slot["server"]["left"].data, "little", signed=True)
            return left <= 0
        if policy.variant() == "Fair":
            quota, period = (int(policy["Fair"][name]) for name in ("quota", "period"))
            return quota < period and int(slot["used"]) >= quota
        return False

    def exits(self):
        """Its last exits, the newest first: class, pc, and ESR or INTID."""
        stats = self.known["stats"]
        count, size = int(stats["exits"]), len(stats["last"])
        for back in range(min(count, size)):
            seen = stats["last"][(count - 1 - back) % size]
            yield SYSTEM["classes"][int(seen["class"])], int(seen["pc"]), int(seen["syndrome"])

    def list_registers(self):
        """What its list registers hold. While it has its pCPU only the hardware knows, which does not tell gdb: None."""
        if self.thread:
            return None
        return self.known["context"]["interface"]["list"].words()

    def latched(self):
        """Interrupts that are pending for it and in no list register."""
        dist = Record.read("bulkhead_el2::vm::Vm", self.vm["state"])["dist"]
        shared = dist["vcpu_words"][self.row["number"]]
        found = []
        for word in range(len(dist["spis"])):
            bank = dist["spis"][word] if word else shared["bank"]
            latch, up, edge = (int(bank[name]) for name in ("latch", "level", "edge"))
            mine = int(shared["owns"]["__0"][word]) if word else 2**32 - 1
            bits = (latch | up & ~edge) & mine
            found += [word * 32 + bit for bit in range(32) if bits >> bit & 1]
        return found


# Bits of the status of a virtio device (VIRTIO 1.2, 2.1).
DRIVER_OK, NEEDS_RESET, FAILED = 4, 0x40, 0x80
# Offsets in the page by which EL2 and the VM that serves a device talk (abi/src/device/mod.rs).
MAGIC, SESSION, LIVE, READY, REFUSAL = 0x000, 0x010, 0x014, 0x800, 0x804
MAGIC_VALUE = int.from_bytes(b"bulk", "little")
REFUSALS = {1: "its type", 2: "its features", 3: "its number", 4: "its size", 5: "its config"}
# What the backend's VM does with the window (el2/src/virtio.rs, `Served`).
UP = 2


def physical(vm, ipa, size):
    """Bytes of the RAM of a VM, or None."""
    found = b""
    for start, place, length in vm["ram"]:
        if size and start <= ipa < start + length:
            part = min(size, start + length - ipa)
            with Physical() as memory:
                found += bytes(memory.read_memory(place + ipa - start, part))
            ipa, size = ipa + part, size - part
    return None if size else found


class Device:
    """A virtio device at this moment."""

    def __init__(self, row):
        self.row = row
        self.name = f"{row['kind']} {row['unit']}" if row["backend"] else row["kind"]
        shared = Record.read("bulkhead_el2::virtio::Shared", row["state"])
        self.transport = shared["transport"]["value"]["value"]
        self.served = int(shared["backend"])

    def driver(self):
        """What the guest's driver does with it."""
        status = int(self.transport["status"])
        if status & FAILED:
            return "gave it up"
        if status & NEEDS_RESET:
            return "has to reset it"
        if status & DRIVER_OK:
            return "drives it"
        return "starts" if status else "is not there"

    def backend(self):
        """What the VM that serves it does."""
        if not self.row["backend"]:
            return "EL2 serves it"
        name, window = self.row["backend"]
        with Physical() as memory:
            page = bytes(memory.read_memory(window, 4096))

        def word(at):
            return int.from_bytes(page[at : at + 4], "little")

        if self.served != UP or word(MAGIC) != MAGIC_VALUE:
            return f"{name} is not there"
        session, live, ready = word(SESSION), word(LIVE), word(READY)
        if word(REFUSAL):
            return f"{name} refuses {REFUSALS.get(word(REFUSAL), 'it')}"
        if not ready:
            return f"{name} has not looked at it"
        if ready != session:
            return f"{name} has not let go of session {ready}"
        return f"{name} serves session {session}" if live == session else f"{name} waits for session {session}"

    def queues(self):
        """Chains that the guest has offered and not got back, queue by queue; of rings that are not in RAM nothing is known."""
        for number in range(len(self.transport["queues"])):
            queue = self.transport["queues"][number]
            if not int(queue["ready"]):
                continue
            size = int(queue["setup"]["size"])
            # The index is behind the flags, in both rings.
            rings = [physical(vm_named(self.row["vm"]), int(queue["setup"][ring]) + 2, 2) for ring in ("available", "used")]
            if None in rings:
                yield f"queue {number}: ? of {size}"
                continue
            offered, used = (int.from_bytes(index, "little") for index in rings)
            yield f"queue {number}: {offered - used & 0xFFFF} of {size}"


def devices():
    return [Device(row) for row in SYSTEM["devices"]]
