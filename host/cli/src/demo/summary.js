"use strict";
// Draws the summary of a demo: `summary` is what `bulkhead demo --json` prints. Text gets into the page as text only,
// never as markup.
const { summary, text } = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const shown = (part) => part !== null && part !== undefined && part !== false;
function fill(node, attributes, rest) {
  for (const [key, value] of Object.entries(attributes ?? {}))
    if (key.startsWith("--")) node.style.setProperty(key, value); else node.setAttribute(key, value);
  node.append(...rest.flat(3).filter(shown));
  return node;
}
function el(name, attributes, ...rest) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  return fill(node, attributes, rest);
}
// In two pieces: a page that asks nobody for anything has no address in it.
const svg = (tag, attributes, ...rest) =>
  fill(document.createElementNS("http" + "://www.w3.org/2000/svg", tag), attributes, rest);
const group = (value) => Number(value).toLocaleString("en").replaceAll(",", "\u202f");
const percent = (value) => `${value.toFixed(2)} %`;
function time(ns) {
  const units = ["ns", "µs", "ms", "s"];
  let unit = 0;
  while (ns >= 1000 && unit < 3) { ns /= 1000; unit += 1; }
  return `${Number(ns.toFixed(2))} ${units[unit]}`;
}
const HUES = [255, 35, 150, 310, 90, 195, 350, 120];
const names = summary.run.vms.map((vm) => vm.name);
const owned = (name) => {
  const index = names.indexOf(name);
  return { "data-vm": name, "--h": index < 0 ? 255 : index < 8 ? HUES[index] : (index * 137.508 + 20) % 360 };
};
const vmName = (name) => el("span.name", owned(name), name);
const section = (title, words, ...content) =>
  el("section", null, el(".head", null, el("h2", null, title), words && el("p", null, words)), content);

/** Bars on a logarithmic scale: what is rare must be seen beside what is frequent. `bars`: label, count, title. */
function bars(label, bars, limit) {
  const [width, height, foot] = [480, 120, 22];
  const step = width / bars.length;
  const highest = Math.log(1 + Math.max(1, ...bars.map((bar) => bar.count)));
  const drawn = bars.map(({ count, title }, index) => {
    const tall = (height * Math.log(1 + count)) / highest;
    return count > 0 && svg("rect", { x: index * step + 1, y: height - tall, width: Math.max(1, step - 2), height: tall, rx: 1 },
      svg("title", null, title));
  });
  const labels = bars.map((bar, index) => bar.label && svg("text", { x: index * step + 2, y: height + 16 }, bar.label));
  const at = limit && limit.at * width;
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height + foot}`, role: "img", "aria-label": label }, drawn, labels,
    svg("line", { class: "base", x1: 0, x2: width, y1: height, y2: height }),
    limit && svg("line", { class: "limit", x1: at, x2: at, y1: 0, y2: height }),
    limit && svg("text", { class: "limit", x: at - 4, y: height + 16, "text-anchor": "end" }, limit.words));
}
/** The same with a line for each, where each has a label: readable in a narrow card. */
function lines(label, bars) {
  const [width, high, from, to] = [320, 20, 84, 236];
  const highest = Math.log(1 + Math.max(1, ...bars.map((bar) => bar.count)));
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${high * bars.length}`, role: "img", "aria-label": label },
    bars.map(({ count, label: words, title }, index) => [
      svg("text", { x: 0, y: index * high + 14 }, words),
      svg("rect", { x: from, y: index * high + 4, width: Math.max(1, ((to - from) * Math.log(1 + count)) / highest), height: high - 8, rx: 2 },
        svg("title", null, title)),
      svg("text", { x: width, y: index * high + 14, "text-anchor": "end" }, group(count))]));
}
/** A table that becomes a list on a phone. Cells of columns that end with `:` are numbers. */
function table(columns, rows) {
  const heads = columns.map((column) => column.replace(/:$/, ""));
  const kind = (index) => (columns[index].endsWith(":") ? ".number" : "");
  return el("table.stack", null,
    el("thead", null, el("tr", null, heads.map((head, index) => el(`th${kind(index)}`, { scope: "col" }, head)))),
    el("tbody", null, rows.map((row) =>
      el("tr", null, row.map((cell, index) => el(`td${kind(index)}`, { "data-head": heads[index] }, el("span", null, cell)))))));
}

function figures() {
  const { control, el2, pings, latency } = summary;
  const wrong = summary.traffic.filter(shown);
  const cards = [
    control && [group(control.periods), `periods at 1 kHz, ${group(control.lost)} lost, ${group(control.doubled)} doubled`],
    el2 && [group(el2.max), `instructions that EL2 took of a period at most, ${group(el2.allowed)} allowed`],
    el2 && [group(el2.exits), `exits in ${group(el2.count)} periods`],
    pings && [`${group(pings.answered)} of ${group(pings.sent)}`, "pings that the loop has answered"],
    latency && [group(latency.wakeups), "wake-ups of cyclictest in the real-time Linux"],
    wrong.length > 0 && [group(wrong.reduce((sum, one) => sum + one.wrong, 0)),
      `wrong of ${group(wrong.reduce((sum, one) => sum + one.disk_kib + one.net_kib, 0))} KiB through disks and networks`],
  ];
  return el(".figures", null, cards.filter(shown).map(([value, words]) => el(".card", null, el("b", null, value), el("span", null, words))));
}
function periods() {
  const { el2 } = summary;
  if (!el2 || el2.max === 0) return null;
  const [count, top] = [60, Math.max(el2.max, el2.allowed) + 1];
  const bins = Array.from({ length: count }, () => 0);
  for (const [instructions, times] of Object.entries(el2.histogram))
    bins[Math.min(count - 1, Math.floor((Number(instructions) * count) / top))] += times;
  const from = (bin) => Math.ceil((bin * top) / count);
  return section("EL2 instructions in a period of the control loop", "Bars: periods, logarithmic scale.",
    el(".card", owned("control"), bars("Periods by instructions of EL2", bins.map((times, bin) => (
      { count: times, label: bin === 0 ? "0" : "", title: `${group(times)} periods with ${from(bin)} to ${from(bin + 1) - 1}` })),
    { at: el2.allowed / top, words: `${group(el2.allowed)} allowed` })));
}
function exits() {
  const { vms } = summary.run;
  if (vms.length === 0) return null;
  const most = Math.max(...vms.map((vm) => vm.all.percent), 0.0001);
  return section("What EL2 took", "of VMs that have stopped; cycles of the emulated CPU",
    el(".card.scroll", null, table(["VM", "class", "vCPUs:", "exits:", "mean:", "longest:", "of their time:", ""], vms.map((vm) => [
      vmName(vm.name), vm.class, group(vm.vcpus), group(vm.all.count), group(Math.round(vm.all.mean)), group(vm.all.max),
      percent(vm.all.percent),
      el("span.meter", { ...owned(vm.name), "--width": `${(100 * vm.all.percent) / most}%`, "aria-hidden": "true" })]))));
}
function shares() {
  const sharing = summary.run.vms.filter((vm) => vm.time);
  if (sharing.length === 0) return null;
  const card = (vm) => {
    const { time: had } = vm;
    const part = (100 * had.ran_ns) / Math.max(1, had.of_ns);
    const below = (waits) => (shown(waits.below_ns) ? `< ${time(waits.below_ns)}` : "more");
    return el(".card", owned(vm.name), el(".line", null, vmName(vm.name), el("span.soft", null, `${percent(part)} of its CPU`)),
      el(".bar", { role: "img", "aria-label": percent(part) }, el(".part", { "--width": `${part}%` }), el(".rest", null)),
      el("p.soft", null, `${group(had.turns)} turns, at most ${time(had.longest_ns)} of waiting, ${group(had.overruns)} budgets overrun`),
      had.waits.some((waits) => waits.count > 0) && lines(`How long ${vm.name} waited for its CPU`, had.waits.map((waits) => (
        { count: waits.count, label: below(waits), title: `${group(waits.count)} waits ${below(waits)}` }))));
  };
  return section("CPUs that are shared", "Bars: waits from being woken to running, logarithmic scale.",
    el(".vms", null, sharing.map(card)));
}
function devices() {
  const { disks, ports } = summary.served;
  if (disks.length + ports.length === 0) return null;
  const kib = (bytes) => `${group(Math.round(bytes / 1024))} KiB`;
  return section("Disks and networks", null,
    disks.length > 0 && el(".card.scroll", null, table(["VM", "disk", "reads:", "read:", "writes:", "written:", "failed:"], disks.map((disk) => [
      vmName(disk.vm), disk.name, group(disk.reads), kib(disk.read_bytes), group(disk.writes), kib(disk.written_bytes), group(disk.failed)]))),
    ports.length > 0 && el(".card.scroll", null, table(["VM", "network", "frames sent:", "sent:", "received:", "bytes:", "dropped:"], ports.map((port) => [
      vmName(port.vm), port.network, group(port.sent), kib(port.sent_bytes), group(port.received), kib(port.received_bytes), group(port.dropped)]))));
}
function emulator() {
  const { control, latency } = summary;
  const rows = [
    control && [vmName("control"), "lateness of a period", time(control.late_min), time(control.late_avg), time(control.late_max)],
    latency && [vmName("rt"), "cyclictest, the kernel's own latency included", time(1000 * latency.late_min), time(1000 * latency.late_avg),
      time(1000 * latency.late_max)],
  ].filter(shown);
  return rows.length > 0 && section("What the emulator adds", "Its CPUs take turns: no figure of Bulkhead.",
    el(".card.scroll", null, table(["VM", "what", "least:", "mean:", "most:"], rows)));
}
const passed = summary.findings.length === 0;
page.append(...[
  el("header", null, el("h1", null, "Bulkhead demo"), el(passed ? "span.badge.new" : "span.badge.gone", null, passed ? "passed" : "failed"),
    el("p", null, `${group(summary.seconds)} s of work in Linux beside the others`)),
  summary.findings.map((finding) => el("p.note", null, finding)),
  figures(), periods(), exits(), shares(), devices(), emulator(),
  summary.ended.length > 0 && section("Ends", null,
    el(".card", null, summary.ended.map((end) => el("p", null, vmName(end.vm), `: ${end.reason}`)))),
  el("details", null, el("summary", null, "The same as text"), el(".card.scroll", null, el("pre", null, text))),
].flat().filter(shown));
