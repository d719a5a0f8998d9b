"use strict";
// Draws a recorded run. What was said gets into the page as text only, never as markup.
const { run, figures } = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
function el(name, attributes, ...rest) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes ?? {}))
    if (key.startsWith("--")) node.style.setProperty(key, value); else node.setAttribute(key, value);
  node.append(...rest.flat().filter((part) => part !== null && part !== false));
  return node;
}
const seconds = (ms) => (ms / 1000).toFixed(3);
const HUES = [255, 35, 150, 310, 90, 195, 350, 120];
const names = [...new Set(run.lines.map((said) => said.from))];
const vms = names.filter((name) => name in run.head.classes);
const owned = (name) => {
  const index = vms.indexOf(name);
  return index < 0 ? {} : { "data-vm": name, "--h": index < 8 ? HUES[index] : (index * 137.508 + 20) % 360 };
};
const hidden = new Set();
let wanted = "";
const rows = run.lines.map((said) => {
  const who = said.from in run.head.classes ? el("span.name", owned(said.from), said.from) : el("span.soft", null, said.from);
  const node = el(".said", { "data-from": said.from }, el("span.soft", null, seconds(said.ms)), who, el("span.text", null, said.text));
  return { said, node };
});
function settle() {
  let shown = 0;
  for (const { said, node } of rows) {
    node.hidden = hidden.has(said.from) || !said.text.toLowerCase().includes(wanted);
    shown += node.hidden ? 0 : 1;
  }
  count.textContent = `${shown} of ${rows.length} lines`;
}
const count = el("p", null);
const boxes = names.map((name) => {
  const box = el("input", { type: "checkbox", checked: "" });
  box.addEventListener("change", () => { box.checked ? hidden.delete(name) : hidden.add(name); settle(); });
  return el("label.who", owned(name), box, " ", el("span.name", null, name));
});
const search = el("input", { type: "search", placeholder: "Find in the console", "aria-label": "Find in the console" });
search.addEventListener("input", () => { wanted = search.value.toLowerCase(); settle(); });
const tail = run.tail;
page.append(
  el("header", null, el("h1", null, run.head.system), tail && el("span.badge", null, tail.ended),
    el("p", null, tail ? `${seconds(tail.ms)} s of the host's clock` : "The recording stops before the end: the run was killed.")),
  el("nav", { "aria-label": "Who is shown" }, boxes, search),
  el("section", null, el(".head", null, el("h2", null, "Console"), count), el(".card.console", null, rows.map((row) => row.node))),
  tail && tail.stopped.length ? el("section", null, el(".head", null, el("h2", null, "Ends")),
    el(".card", null, tail.stopped.map((end) => el("p", null, el("span.name", owned(end.vm), end.vm), `: ${end.reason}`)))) : "",
  figures ? el("section", null, el(".head", null, el("h2", null, "What EL2 took"), el("p", null, "of VMs that have stopped")),
    el(".card.scroll", null, el("pre", null, figures))) : "");
settle();
