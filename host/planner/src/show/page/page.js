"use strict";
// Draws a plan: `data` is what `bulkhead plan --json` prints, with what differs from another plan.
// Text of the plan gets into the page as text only, never as markup.
const { plan, diff } = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const PAGE = 4096;

/** An element: `el("p.soft", {title: ".."}, "text", child, ...)`; what is null or false is left out. */
function el(name, ...rest) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const part of rest.flat(3)) {
    if (part === null || part === undefined || part === false) continue;
    if (part instanceof Node || typeof part !== "object") node.append(part);
    else for (const [key, value] of Object.entries(part)) {
      if (key === "tip") node.dataset.tip = value;
      else if (key.startsWith("--")) node.style.setProperty(key, value);
      else if (value !== null && value !== undefined) node.setAttribute(key, value);
    }
  }
  return node;
}

// Numbers for people. Addresses are below 2^53.
const number = (text) => Number(text);
const hex = (value) => "0x" + value.toString(16).padStart(9, "0");
const many = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${Number(bytes.toFixed(bytes < 10 ? 2 : bytes < 100 ? 1 : 0))} ${units[unit]}`;
}
function time(ns) {
  const units = ["ns", "µs", "ms", "s"];
  let unit = 0;
  while (ns >= 1000 && unit < 3) { ns /= 1000; unit += 1; }
  return `${Number(ns.toFixed(2))} ${units[unit]}`;
}
const percent = (ppm) => `${Number((ppm / 10000).toFixed(1))} %`;

// Hues: the first eight are far apart and known by name; further ones fall into the gaps.
const HUES = [255, 35, 150, 310, 90, 195, 350, 120];
const vms = new Map(plan.vms.map((vm, index) => [vm.name, { ...vm, index }]));
const hue = (index) => (index < HUES.length ? HUES[index] : (index * 137.508 + 20) % 360);
/** Attributes of what belongs to a VM, or to nobody who is one. */
function owned(names) {
  const vm = vms.get(names[0]);
  if (!vm) return {};
  const attributes = { "data-vm": names.join(" "), "--h": hue(vm.index) };
  if (names.length > 1) {
    // What several have shows the colours of all.
    const step = 100 / names.length;
    const stops = names.map((name, index) =>
      `oklch(var(--fill-l) var(--fill-c) ${hue(vms.get(name)?.index ?? 0)}) ${index * step}% ${(index + 1) * step}%`);
    attributes["--several"] = `linear-gradient(100deg, ${stops.join(", ")})`;
  }
  return attributes;
}
const vmName = (name) =>
  el("button.vm", { type: "button", ...owned([name]), "aria-pressed": "false" }, name);

function section(id, title, text, ...content) {
  return el("section", { id, "data-box": id }, el(".head", el("h2", title), text && el("p", text)), content);
}

// Who has which part of the board's memory, free parts too.
function memory() {
  const parts = [];
  for (const range of plan.board.memory) {
    let at = number(range.pa);
    const end = at + range.size;
    const free = (to) => { if (to > at) parts.push({ pa: at, size: to - at, owners: [], what: "free" }); };
    for (const part of plan.memory) {
      const pa = number(part.pa);
      if (pa < number(range.pa) || pa >= end) continue;
      free(pa);
      parts.push({ ...part, pa });
      at = Math.max(at, pa + part.size);
    }
    free(end);
  }
  return parts;
}
const parts = memory();
const total = plan.board.memory.reduce((sum, range) => sum + range.size, 0);
const free = parts.filter((part) => part.what === "free").reduce((sum, part) => sum + part.size, 0);
const kind = (part) => (part.what === "free" ? ".free" : part.owners.length ? "" : ".el2");
const range = (part) => `${hex(part.pa)} to ${hex(part.pa + part.size)}`;
const partTip = (part) =>
  `${part.what}\n${range(part)}\n${size(part.size)}, ${percent((part.size / total) * 1e6)} of the memory` +
  (part.owners.length > 1 ? `\nmapped by ${part.owners.join(", ")}` : "");

function memoryMap() {
  // To scale where that can be seen; what is smaller has two pixels.
  const strip = el(".strip", { role: "img", "aria-label": "Memory to scale" }, parts.map((part) =>
    el(`.part${kind(part)}`, { style: `flex:${part.size} 1 0`, tip: partTip(part), ...owned(part.owners) })));
  const ladder = el(".ladder", parts.map((part) => {
    // Height by magnitude: 4 KiB and 4 GiB are on one page.
    const tall = 28 + Math.max(0, Math.log2(part.size / PAGE) - 8) * 4;
    return el(`.rung${kind(part)}`, { ...owned(part.owners), "data-name": part.owners.join(" ") },
      el("code", hex(part.pa)),
      el(".part", { tip: partTip(part), "--tall": `${tall}px`, tabindex: 0 },
        el("span", part.what), el("span.size.mono", size(part.size)),
        part.owners.length > 1 && el("span.owners", part.owners.map(vmName))));
  }));
  const first = plan.board.memory[0], last = plan.board.memory[plan.board.memory.length - 1];
  return section("memory", "Memory", `${size(total - free)} of ${size(total)} taken, ${size(free)} free`,
    el(".card", strip,
      el(".ends", el("code", hex(number(first.pa))), el("code", hex(number(last.pa) + last.size))), ladder));
}

// What the vCPUs of a CPU get of it, in millionths.
function slices(cpu) {
  const { servers, fair } = cpu.usage;
  const thread = cpu.thread ? [{ vm: null, vcpu: null }] : [];
  return [...cpu.vcpus, ...thread].map(({ vm, vcpu }) => {
    // The service thread has neither.
    const same = (entry) => vm === null ? !entry.vcpu : entry.vcpu?.vm === vm && entry.vcpu.vcpu === vcpu;
    const server = servers.find(same), share = fair.find(same);
    if (server) return { vm, vcpu, ppm: Math.round(server.need_ns / server.period_ns * 1e6),
      how: `${time(server.budget_ns)} in each ${time(server.period_ns)}`,
      more: `server: needs ${time(server.need_ns)} with the switches, at most ${time(server.gap_ns)} without` };
    if (share) return { vm, vcpu, ppm: share.least_ppm, how: `weight ${share.weight}, ${percent(share.least_ppm)}`,
      more: "fair: so much while all others here want theirs" + (share.cap_ppm ? `, never more than ${percent(share.cap_ppm)}` : "") };
    return { vm, vcpu, ppm: 1e6, how: "pinned", more: "has the CPU for itself" };
  });
}
function cpuMap() {
  const used = new Map(plan.cpus.map((cpu) => [cpu.cpu, cpu]));
  const cards = plan.board.cpus.map((mpidr, index) => {
    const cpu = used.get(index);
    const title = el(".line", el("h3", `CPU ${index}`), el("code.soft", `MPIDR ${mpidr}`));
    if (!cpu) return el(".card.unused", title, el("p", "nobody's: EL2 does not start it"));
    const own = slices(cpu);
    const name = ({ vm, vcpu }) => (vm !== null && vms.get(vm).cpus.length > 1 ? ` vCPU ${vcpu}` : "");
    const tip = (slice) => `${slice.vm ?? "EL2's service thread"}${name(slice)}: ${slice.how}\n${slice.more}`;
    return el(".card", { "data-name": own.map((slice) => slice.vm ?? "").join(" ") }, title,
      el(".bar", own.map((slice) => el(".part", { style: `flex:0 1 ${slice.ppm / 10000}%`, tip: tip(slice), ...owned([slice.vm]) })), el(".rest")),
      el("ul", own.map((slice) => el("li", { tip: tip(slice) }, el("span", slice.vm === null ? "service thread" : vmName(slice.vm), name(slice)), el("span.soft", slice.how)))),
      cpu.usage.servers.length > 0 && el("p.soft", `servers take ${percent(cpu.usage.servers_ppm)}`),
      cpu.service && el("p.soft", "drains the console"));
  });
  return section("cpus", "CPUs", `${plan.cpus.length} of ${plan.board.cpus.length} in use`, el(".cpus", cards));
}

// What EL2 pays for a VM: stage-2 tables, shared state, vCPUs; in pages of its page pool.
const pagePool = plan.image.pool;
const pagesOf = (vm) => vm.s2_pages + pagePool.vm_pages + vm.cpus.length * pagePool.vcpu_pages;
const MODES = { vgic: "through the virtual GIC, an exit for each" };
const KINDS = { pl011: "console (PL011)", pl031: "clock (PL031)", "sbsa-watchdog": "watchdog (SBSA)" };
const CRASH = {
  halt: () => "stays stopped",
  restart: (crash) => `starts again, ${many(crash.most, "time")} in ${crash.seconds} s at most`,
  notify: (crash) => `stays stopped, and ${crash.vm} is told`,
};
function cpuTime(cpu) {
  if (cpu.policy === "pinned") return "pinned";
  if (cpu.policy === "rt") return `server: ${time(cpu.budget_ns)} in each ${time(cpu.period_ns)}`;
  const cap = cpu.cap ? `, ${time(cpu.cap.quota_ns)} in each ${time(cpu.cap.window_ns)} at most` : "";
  const moves = cpu.pool.length ? `, may move to CPUs ${cpu.pool.join(", ")}` : "";
  return `fair: weight ${cpu.weight}${cap}${moves}`;
}
function space(vm) {
  const rows = [];
  const row = (name, at, words, right, more, tip) => rows.push({ at, name, node: el(`.row${name}`, tip && { tip },
    el("code", hex(at)), el("span", words), el("code", right), more && el("small", more)) });
  for (const region of vm.regions) {
    const stolen = region.what === "stolen time" || region.what.startsWith("registers of ");
    row(".mem", number(region.ipa), region.what, `${region.access} ${size(region.size)}`,
      stolen ? "a page of EL2's pool" : `at PA ${hex(number(region.pa))}`,
      `${region.what}\nIPA ${hex(number(region.ipa))} to ${hex(number(region.ipa) + region.size)}` +
      (stolen ? "" : `\nPA ${hex(number(region.pa))} to ${hex(number(region.pa) + region.size)}`));
  }
  for (const payload of vm.loads) row(".payload", number(payload.ipa), payload.what, size(payload.size));
  for (const device of vm.emulated)
    row("", number(device.ipa), KINDS[device.kind] ?? device.kind, size(device.size), `emulated, INTID ${device.vintid}`);
  for (const other of vm.added ? plan.vms : [])
    for (const device of other.virtio)
      row("", number(device.window.ipa), `${device.kind} ${device.name}`, size(device.window.size), `window of ${other.name}`);
  for (const bell of plan.doorbells.filter((bell) => bell.from === vm.name))
    row("", number(bell.ipa), `rings ${bell.name}`, size(PAGE), `heard by ${bell.to}`);
  // What lies in a region comes behind its start.
  return rows.sort((a, b) => a.at - b.at || (a.name === ".mem" ? -1 : 1)).map((entry) => entry.node);
}
const badges = new Map((diff?.vms ?? []).map((vm) => [vm.name, vm.kind]));
// What is typed for a VM on the console; of a few VMs one sees it.
const key = (index) => (index < 9 ? `${index + 1}` : `0${String(index + 1).padStart(2, "0")}`);
function vmCard(vm, index) {
  const mode = vm.interrupt_mode;
  const ram = vm.regions.filter((region) => region.what === "RAM").reduce((sum, region) => sum + region.size, 0);
  const cpus = [...new Set(vm.cpus)];
  const fact = (name, words, why) => words && [el("dt", name), el("dd", why ? { tip: why } : {}, words)];
  return el(".card", { ...owned([vm.name]), "data-name": vm.name, id: `vm-${vm.name}` },
    el(".line", el("h3", vmName(vm.name)), el("span.badge", vm.class),
      vm.added && el("span.badge", { tip: "for disks and networks of other VMs" }, "added by the planner"),
      badges.has(vm.name) && el(`span.badge.${badges.get(vm.name)}`, badges.get(vm.name))),
    el("dl",
      fact("memory", size(ram)),
      fact("CPUs", `${many(vm.cpus.length, "vCPU")} on ${cpus.length === 1 ? "CPU" : "CPUs"} ${cpus.join(", ")}`),
      fact("CPU time", cpuTime(vm.cpu), `why: ${vm.cpu.why}`),
      vm.accesses && fact("accesses", `${vm.accesses.most} in each ${time(vm.accesses.period_ns)} at most`, `of each vCPU; counted: ${vm.accesses.event}`),
      fact("interrupts", MODES[mode.mode] ?? `its own, without an exit (${mode.mode})`, `why: ${mode.why}`),
      vm.reclaim && fact("reclaim", vm.reclaim),
      vm.ptimer === "own" && fact("timer", "the physical timer is its own"),
      vm.time === "stops" && fact("time", "stands still while it is paused"),
      vm.virtio.map((device) => fact(device.kind, [device.name, device.kind === "disk" && `, ${size(device.size)}`, device.mac && `, ${device.mac}`,
        device.vlan && `, VLAN ${device.vlan}`, device.image && `, ${device.changes ? "changes to" : "read-only,"} ${device.image}`], `virtio, ${device.poll_ns ? `polled each ${time(device.poll_ns)}` : `INTID ${device.vintid}`}; served by ${device.kind === "console" ? "EL2" : plan.service?.vm}${movedOn(vm)}`)),
      vm.debug && fact("debug", "breakpoints, watchpoints and steps of its own"),
      vm.pmu && fact("counters", "performance monitors of its own, but two counters of each CPU"),
      !vm.autostart && fact("start", "when somebody starts it"),
      vm.locked && fact("locked", "no manager stops, pauses, restarts or changes it"),
      vm.stop && fact("stop", vm.stop.word ? `asked by the word at ${vm.stop.word}` : `asked by the power key, INTID ${vm.stop.vintid}`, `has ${time(vm.stop.timeout_ms * 1e6)} for it`),
      vm.manages.map((other) => fact("manages", `${other.vm}: ${other.rights.join(", ")}`)),
      fact("crash", CRASH[vm.crash.policy](vm.crash)),
      plan.vms.length > 9 && fact("keys", `Ctrl-T ${key(index)}`, "gives it the input; in the monitor without Ctrl-T"),
      vm.events !== null && fact("events", `told of crashes of others by INTID ${vm.events}`),
      vm.smc.length > 0 && fact("calls", `firmware may be asked for ${vm.smc.join(", ")}`),
      vm.quiets.length > 0 && fact("restart", `${many(vm.quiets.length, "write")} quiet its devices first`),
      vm.declared.map((one) => fact("no DMA", one.device, ["by the description's word", one.lacks.length > 0 && `not the VM's, and as firmware left it: ${one.lacks.map((lack) => `${lack.property} (${lack.path})`).join(", ")}`,
        one.clockless && "no clocks in its node", !one.quieted && "stays as it was left when the VM starts again"].filter(Boolean).join("; "))),
      vm.deterministic && fact("seeds", "fixed: every boot has the same random numbers"),
      fact("costs", `${size(pagesOf(vm) * PAGE)} of EL2's pool`, `${many(vm.s2_pages, "page")} of stage-2 tables, ${pagePool.vm_pages} of shared state, ` +
        `${pagePool.vcpu_pages} for each vCPU; ${vm.spis} SPIs in its vGIC`),
      vm.colours && fact("colours", `${many(vm.colours.tables, "page")} of tables more`, `an entry of the TLB for ${vm.colours.hint ? "each sixteen pages that are adjacent" : "each page"}, ` +
        `${vm.colours.start} instructions more at most at each start; its pages lie in ${size(vm.colours.span)}`)),
    vm.deviations.map((deviation) => el("p", { tip: `the class asks for ${deviation.asked}` },
      el("span.badge.warn", "deviation"), " ", el("code", deviation.stated), `: ${deviation.got}`)),
    el("details", plan.vms.length <= 6 ? { open: "" } : {}, el("summary", "What it finds at which address"), el(".space", space(vm))));
}

/** A table that is a list of entries on a narrow screen. */
function table(heads, rows) {
  const names = heads.map((head) => head.replace("#", ""));
  const end = (index) => (heads[index].endsWith("#") ? ".number" : "");
  return el(".scroll", el("table.stack", el("thead", el("tr", names.map((name, index) => el(`th${end(index)}`, name)))),
    el("tbody", rows.map(({ cells, ...attributes }) => el("tr", attributes,
      cells.map((cell, index) => el(`td${end(index)}`, { "data-head": names[index] }, el("span", cell))))))));
}
function interrupts() {
  const rows = [], none = () => el("span.soft", "none");
  for (const vm of plan.vms) {
    for (const irq of vm.interrupts)
      rows.push({ at: irq.pintid, vm: vm.name, cells: [String(irq.pintid), vmName(vm.name), String(irq.vintid), irq.edge ? "edge" : "level", irq.device] });
    for (const device of vm.emulated)
      rows.push({ at: 1e6, vm: vm.name, cells: [none(), vmName(vm.name), String(device.vintid), "level", `emulated ${KINDS[device.kind] ?? device.kind}`] });
    for (const device of vm.virtio.filter((device) => !device.poll_ns))
      rows.push({ at: 1e6, vm: vm.name, cells: [none(), vmName(vm.name), String(device.vintid), "edge", `virtio: ${device.kind} ${device.name}`] });
    if (vm.added)
      rows.push({ at: 1e6, vm: vm.name, cells: [none(), vmName(vm.name), String(plan.service.vintid), "edge", "devices that it serves have something to do"] });
    if (vm.events !== null)
      rows.push({ at: 1e6, vm: vm.name, cells: [none(), vmName(vm.name), String(vm.events), "edge", "crashes of other VMs"] });
  }
  for (const bell of plan.doorbells)
    rows.push({ at: 1e6, vm: bell.to, cells: [bell.physical ? "an unused SPI" : none(), vmName(bell.to), String(bell.intid), "edge", `doorbell ${bell.name} of ${bell.from}`] });
  if (!rows.length) return null;
  rows.sort((a, b) => a.at - b.at);
  return section("interrupts", "Interrupts and devices", "Which of the board's interrupts becomes which of a VM's, and what EL2 makes itself",
    el(".card", table(["board's INTID", "VM", "its INTID", "trigger", "from"],
      rows.map(({ vm, cells }) => ({ ...owned([vm]), "data-name": vm, cells })))));
}
function together() {
  const shared = plan.memory.filter((part) => part.what.startsWith("shared: ")).map((part) => {
    const name = part.what.slice("shared: ".length);
    const access = (vm) => vms.get(vm).regions.find((region) => region.what === name && region.pa === part.pa)?.access ?? "";
    return { "data-name": part.owners.join(" "), cells: [name, "memory", size(part.size),
      part.owners.map((vm, index) => [index > 0 && ", ", vmName(vm), " ", el("code.soft", access(vm))])] };
  });
  const bells = plan.doorbells.map((bell) => ({ "data-name": `${bell.from} ${bell.to}`, cells: [bell.name, "doorbell",
    `once in ${time(bell.apart_ns)}`, [vmName(bell.from), " → ", vmName(bell.to), el("span.soft", bell.physical ? " without an exit" : " by an exit")]] }));
  const cards = plan.vms.flatMap((vm) => vm.virtio.filter((device) => device.kind === "network").map((device) => ({ vm: vm.name, ...device })));
  const among = (card) => card.vlan ? `${card.name}, VLAN ${card.vlan}` : card.name;
  const networks = [...new Set(cards.map(among))].map((network) => {
    const members = cards.filter((card) => among(card) === network);
    return { "data-name": members.map((card) => card.vm).join(" "), cells: [network, "network", many(members.length, "card"),
      members.map((card, index) => [index > 0 && ", ", vmName(card.vm), " ", el("code.soft", card.mac)])] };
  });
  if (!shared.length && !bells.length && !networks.length) return null;
  return section("together", "Shared between VMs", "Nothing else is reachable for more than one of them",
    el(".card", table(["name", "kind", "size or rate", "who"], [...shared, ...bells, ...networks])));
}
// Where the data of a VM's devices is moved, if there is more than one place.
function movedOn(vm) {
  const threads = plan.service?.threads ?? [];
  const own = threads.find((thread) => thread.serves.includes(vm.name));
  return own && threads.length > 1 ? `, moved on CPU ${own.cpu}` : "";
}

function costs() {
  const rows = plan.vms.map((vm) => ({ vm: vm.name, pages: pagesOf(vm) })).sort((a, b) => b.pages - a.pages);
  const most = Math.max(1, ...rows.map((row) => row.pages));
  const own = plan.image.el2_bytes - plan.image.pool_pages * PAGE;
  const fixed = plan.cpus.length * pagePool.cpu_pages;
  const devices = plan.vms.flatMap((vm) => vm.virtio).length;
  const threads = plan.service?.threads ?? [];
  const service = threads.reduce((sum, thread) => sum + thread.pool_pages + pagePool.vcpu_pages, devices * pagePool.virtio_pages);
  const lines = [
    { cells: ["EL2 and the plan", size(own), el("span.soft", `profile ${plan.image.profile}: ${plan.image.profile_why}`)] },
    ...(plan.image.colours ? [{ cells: [`colours ${plan.image.colours}`, size(plan.image.pool_pages * PAGE),
      el("span.soft", "its own pages, stage-2 tables, and what lies between them")] }] : []),
    { cells: [many(plan.cpus.length, "CPU"), size(fixed * PAGE), el("span.soft", `${pagePool.cpu_pages} pages for each`)] },
    ...(service ? [{ cells: [many(threads.length, "service thread"), size(service * PAGE),
      el("span.soft", `and ${pagePool.virtio_pages} pages for each of ${many(devices, "virtio device")}`)] }] : []),
    ...rows.map((row) => ({ ...owned([row.vm]), "data-name": row.vm, cells: [vmName(row.vm), size(row.pages * PAGE),
      el("span.meter", { style: `width:${(row.pages / most) * 90}%` })] })),
  ];
  return section("costs", "What EL2 takes", `${size(plan.image.el2_bytes)} of ${size(total)}; payloads, which are in the image for restarts, apart`,
    el(".card", table(["for", "memory#", ""], lines)));
}
function changes() {
  if (!diff) return null;
  const gone = () => el("span.soft", "not there");
  const rows = diff.changes.map((change) => ({ "data-name": change.vm ?? "",
    cells: [change.vm && vms.has(change.vm) ? vmName(change.vm) : change.subject, change.what, change.old ?? gone(), change.new ?? gone()] }));
  const node = section("changes", "What differs", `from ${diff.old}: ${many(rows.length, "difference")}`,
    el(".card", rows.length ? table(["of", "what", "was", "is"], rows) : el("p", "The plans are the same.")));
  for (const row of node.querySelectorAll("tbody tr")) {
    row.children[2].classList.add("old");
    row.children[3].classList.add("now");
  }
  return node;
}

const taken = new Set(plan.vms.flatMap((vm) => vm.cpus)).size;
page.append(...[
  el("header", el("h1", plan.name), plan.provisional && el("span.badge.warn", "provisional"),
    el("p", `${many(plan.vms.length, "VM")} on ${plan.board.name}, GICv${plan.board.gic}` + (plan.board.qemu ? `, ${plan.board.qemu.cpu}` : ""))),
  el(".nav"),
  plan.provisional && el("p.note", "Made without what is not built or fetched yet: addresses and sizes may still change. bulkhead build makes the final plan."),
  el(".figures", { "data-box": "figures" },
    [[many(plan.vms.length, "VM"), [...new Set(plan.vms.map((vm) => vm.class))].join(", ")],
     [`${taken} of ${plan.board.cpus.length}`, "CPUs in use"], [size(free), `free of ${size(total)}`],
     [size(plan.image.el2_bytes), "for EL2"]].map(([figure, words]) => el(".card", el("b", figure), el("span", words)))),
  ...[changes(), memoryMap(), cpuMap(),
    section("vms", "VMs", "What each has and what it costs; the reason for a choice shows when one points at it", el(".vms", plan.vms.map(vmCard))),
    together(), interrupts(), costs()].filter(Boolean),
  el("footer", `Image at ${plan.image.base}, ${size(plan.image.size)}; plan of ${plan.image.plan_size} bytes. Drawn by bulkhead plan.`)].filter(Boolean));
const filter = el("input", { type: "search", placeholder: "Find a VM", "aria-label": "Find a VM", autocomplete: "off" });
page.querySelector(".nav").replaceWith(el("nav", { "aria-label": "Parts of this page", "data-box": "nav" },
  [...page.querySelectorAll("section")].map((part) => el("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)), filter));

// One VM stands out while one points at its name, or after a click until the next one; or those that are searched.
let chosen = null;
function show(wanted) {
  page.classList.toggle("one", wanted !== null);
  for (const node of page.querySelectorAll("[data-name], .strip .part, .bar .part"))
    node.classList.toggle("dim", wanted !== null && !wanted(node.dataset.name ?? node.dataset.vm ?? ""));
  for (const button of page.querySelectorAll("button.vm"))
    button.setAttribute("aria-pressed", String(chosen === button.textContent));
}
const only = (name) => (names) => names.split(" ").includes(name);
function settle() {
  const words = filter.value.trim().toLowerCase();
  show(words ? (names) => names.toLowerCase().includes(words) : chosen ? only(chosen) : null);
}
filter.addEventListener("input", () => { chosen = null; settle(); });
page.addEventListener("click", (event) => {
  const button = event.target.closest("button.vm");
  chosen = button && chosen !== button.textContent ? button.textContent : null;
  if (button) filter.value = "";
  settle();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  chosen = null;
  filter.value = "";
  settle();
  hint(null);
});

// Details where one points, where the keyboard is, and where a finger is.
const tip = document.getElementById("tip");
function hint(node) {
  tip.hidden = !node;
  if (!node) return;
  tip.textContent = node.dataset.tip;
  const box = node.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const left = Math.min(Math.max(12, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 12);
  const above = box.top - own.height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : Math.min(box.bottom + 8, innerHeight - own.height - 8)}px`;
}
const hinted = (event) => hint(event.target.closest("[data-tip]"));
for (const kind of ["pointerover", "pointerdown", "focusin"]) document.addEventListener(kind, hinted);
document.addEventListener("focusout", () => hint(null));
document.addEventListener("scroll", () => hint(null), { passive: true });
