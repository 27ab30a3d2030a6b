"use strict";
// Browses the rollouts of a report. Everything is set as text, never as markup.
(() => {
  const PER_PAGE = 20, STEP = 0, PROBLEM = 1, SAMPLE = 2, STATUS = 3, ADVANTAGE = 5, WORDS = 6, PARTS = 7;
  const section = document.getElementById("browser");
  if (!section || typeof DecompressionStream !== "function") return;  // no rollouts, or an old browser
  const output = section.querySelector("output"), list = section.querySelector(".rollouts");
  const form = section.querySelector("form");
  let rollouts = [], found = [], page = 0;

  async function unpack(element) {
    const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  function element(tag, kind, content) {
    const made = document.createElement(tag);
    made.className = kind;
    if (content !== undefined) made.textContent = content;
    return made;
  }

  function steps(asked) {
    const match = /^\s*(\d+)\s*(?:-\s*(\d+))?\s*$/.exec(asked);
    if (!match) return asked.trim() ? null : [-Infinity, Infinity];
    return [Number(match[1]), Number(match[2] ?? match[1])];
  }

  function advantageFits(value, asked) {
    if (!asked) return true;
    if (asked === "none") return value === null;
    if (value === null) return false;
    return asked === "0" ? value === 0 : asked === "+" ? value > 0 : value < 0;
  }

  function filter() {
    const asked = new FormData(form), range = steps(asked.get("step")), order = asked.get("order");
    const [problem, words] = [asked.get("problem").toLowerCase(), asked.get("text").toLowerCase()];
    form.elements.step.classList.toggle("wrong", range === null);
    found = range === null ? [] : rollouts.filter((row) =>
      (range[0] === -Infinity || (row[STEP] >= range[0] && row[STEP] <= range[1]))
      && row[PROBLEM].toLowerCase().includes(problem)
      && (!asked.get("status") || row[STATUS] === asked.get("status"))
      && advantageFits(row[ADVANTAGE], asked.get("advantage"))
      && (!words || row[PARTS].some((part) => part[1].toLowerCase().includes(words))));
    if (order === "last") found.sort((a, b) => b[STEP] - a[STEP]);
    if (order === "high" || order === "low") {
      const key = (row) => row[ADVANTAGE] === null ? Infinity : (order === "high" ? -1 : 1) * row[ADVANTAGE];
      found.sort((a, b) => (key(a) === key(b) ? 0 : key(a) - key(b)));
    }
    page = 0;
    show();
  }

  function card(row) {
    const made = element("article", "rollout"), head = element("h4", ""), status = row[STATUS], words = row[WORDS];
    head.append(`step ${row[STEP]}, ${row[PROBLEM]}, sample ${row[SAMPLE]}: `);
    head.append(element("span", `status ${/^[a-z_]+$/.test(status) ? status : ""}`, status));
    head.append(words.startsWith(status) ? words.slice(status.length) : ` ${words}`);
    made.append(head);
    for (const [label, content, kind] of row[PARTS]) {
      made.append(element("div", "label", label));
      made.append(element("pre", (kind & 1 ? "masked" : "own") + (kind & 2 ? " void" : ""), content));
    }
    return made;
  }

  function show() {
    const start = page * PER_PAGE, shown = found.slice(start, start + PER_PAGE);
    list.replaceChildren(...shown.map(card));
    const range = shown.length ? `${start + 1} to ${start + shown.length} of ` : "";
    output.textContent = `${range}${found.length.toLocaleString("en")} rollouts`;
    section.querySelector("[name=back]").disabled = page === 0;
    section.querySelector("[name=next]").disabled = start + PER_PAGE >= found.length;
  }

  function turn(by) {
    page = Math.max(0, Math.min(page + by, Math.floor(Math.max(found.length - 1, 0) / PER_PAGE)));
    show();
  }

  function fillVerdicts() {
    const counts = new Map();
    for (const row of rollouts) counts.set(row[STATUS], (counts.get(row[STATUS]) ?? 0) + 1);
    for (const [name, count] of counts) {
      const option = element("option", "", `${name} (${count.toLocaleString("en")})`);
      option.value = name;
      form.elements.status.append(option);
    }
  }

  async function begin() {
    rollouts = await unpack(document.getElementById("rollouts"));
    fillVerdicts();
    let timer;
    form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(filter, 150); });
    form.addEventListener("submit", (event) => event.preventDefault());
    section.querySelector("[name=back]").addEventListener("click", () => turn(-1));
    section.querySelector("[name=next]").addEventListener("click", () => turn(1));
    form.reset();
    section.hidden = false;
    filter();
    document.body.dataset.ready = Math.round(performance.now());
  }

  begin();
})();
