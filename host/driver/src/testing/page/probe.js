"use strict";
// Looks at a page from inside, as `bulkhead test page/` wants it: the answers go into an element that it reads.
(() => {
  const wrong = [];
  const say = (what, node) => wrong.push(`${what}: <${node.tagName.toLowerCase()} class="${node.className}"> ${node.textContent.trim().slice(0, 60)}`);
  const width = document.documentElement.clientWidth;
  // What a description says, such as `monitor = false`, may be there.
  const text = document.getElementById("page").innerText.replaceAll("= false", "");
  for (const word of ["undefined", "NaN", "[object", "null", "false"])
    if (text.includes(word)) wrong.push(`the page says ${word}`);
  // A phone does not scroll sideways, and nothing is cut off at its edge.
  const over = document.documentElement.scrollWidth - width;
  if (over > 0) wrong.push(`the page is ${over} pixels wider than the window of ${width}`);
  for (const node of document.querySelectorAll("main *")) {
    const box = node.getBoundingClientRect();
    if (box.width > 0 && (box.right > width + 1 || box.left < -1)) { say("out of the window", node); break; }
  }

  // Text can be read: at least 4.5 to 1 against what is behind it (WCAG 2.2, 1.4.3).
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const pixel = (...layers) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of layers) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const grounds = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      // Stripes and the colours of several owners: each colour of them is a ground of its own.
      const stops = style.backgroundImage.match(/(?:oklch|rgba?|color)\([^()]*\)/g);
      if (stops) return stops.map((stop) => [style.backgroundColor, stop, ...layers]);
      layers.unshift(style.backgroundColor);
    }
    return [layers];
  };
  let least = 21, worst = null, texts = 0;
  for (const node of document.querySelectorAll("main *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility()) continue;
    texts += 1;
    const ink = getComputedStyle(node).color;
    for (const layers of grounds(node)) {
      const [a, b] = [light(pixel("canvas", ...layers, ink)), light(pixel("canvas", ...layers))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < least) { least = ratio; worst = node; }
      if (ratio < 4.5) { say(`contrast ${ratio.toFixed(2)}`, node); break; }
    }
  }

  const names = [...document.querySelectorAll(".vms .card")].map((node) => node.dataset.name);
  if (names.length) plan();
  else run();
  function plan() {
    // What shows when one points at it shows for the keyboard, too.
    const tip = document.getElementById("tip");
    const rung = document.querySelector(".rung .part");
    rung.focus();
    if (tip.hidden || !tip.textContent.includes("0x")) wrong.push("no details at the part of the memory that has the focus");
    rung.blur();
    if (!tip.hidden) wrong.push("the details stay");
    // Of many VMs each says what is typed for it.
    const typed = [...document.querySelectorAll(".vms dd")].filter((node) => node.textContent.startsWith("Ctrl-T ")).map((node) => node.textContent);
    if (new Set(typed).size !== (names.length > 9 ? names.length : 0)) wrong.push(`${typed.length} of ${names.length} VMs say what is typed for them`);
    // One VM stands out after a click, until Escape.
    const card = (name) => document.querySelector(`.vms .card[data-name="${name}"]`);
    const dim = () => names.filter((name) => card(name).classList.contains("dim"));
    card(names[0]).querySelector("button.vm").click();
    if (dim().length !== names.length - 1 || dim().includes(names[0])) wrong.push(`a click on ${names[0]} leaves ${dim()} in the background`);
    document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    if (dim().length) wrong.push("Escape does not bring the others back");
    const search = document.querySelector("nav input");
    search.value = names[names.length - 1].toUpperCase();
    search.dispatchEvent(new Event("input"));
    if (dim().includes(names[names.length - 1]) || !dim().includes(names[0])) wrong.push("the search does not find the last VM");
    document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  }
  // Of a recorded run: who is not ticked does not show, nor what is not searched.
  function run() {
    const shown = (from) => [...document.querySelectorAll(`.said[data-from="${from}"]`)].filter((node) => !node.hidden).length;
    const before = [shown("a"), shown("el2")];
    const box = document.querySelector("nav input[type=checkbox]");
    box.click();
    if (!before[0] || shown("a") || shown("el2") !== before[1]) wrong.push("the lines of `a` cannot be hidden alone");
    box.click();
    const search = document.querySelector("nav input[type=search]");
    search.value = "LINE 7 ";
    search.dispatchEvent(new Event("input"));
    if (shown("a") !== 1 || shown("el2") !== 0) wrong.push("the search does not find one line");
    search.value = "";
    search.dispatchEvent(new Event("input"));
    if (shown("a") !== before[0]) wrong.push("the other lines do not come back");
  }

  // Where the large parts are, in hundredths of the window's width.
  const boxes = {};
  for (const node of document.querySelectorAll("[data-box]")) {
    const box = node.getBoundingClientRect();
    boxes[node.dataset.box] = [box.left, box.top + scrollY, box.width, box.height].map((length) => Math.round((length / width) * 100));
  }
  scrollTo(0, 0);
  const answer = { width, wrong: wrong.slice(0, 12), texts, least, vms: names.length, boxes };
  parent.postMessage(JSON.stringify(answer).replaceAll("<", "\\u003c"), "*");
})();
