"use strict";
// Browses the rollouts of a report. Everything is set as text, never as markup.
(() => {
  const PER_PAGE = 20, KEPT = 40;
  const section = document.getElementById("browser");
  if (!section || typeof DecompressionStream !== "function") return;  // no rollouts, or an old browser
  const packs = [...document.querySelectorAll("script.chunk")];
  const output = section.querySelector("output"), list = section.querySelector(".rollouts");
  const form = section.querySelector("form");
  const unpacked = new Map();
  let index, found = [], page = 0, search = 0;

  async function unpack(element) {
    const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  async function text(i) {
    const number = Math.floor(i / index.chunk);
    let chunk = unpacked.get(number);
    if (chunk === undefined) chunk = await unpack(packs[number]);
    unpacked.delete(number);
    unpacked.set(number, chunk);
    if (unpacked.size > KEPT) unpacked.delete(unpacked.keys().next().value);
    return chunk[i % index.chunk];
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

  function matching(asked) {
    const c = index.columns, range = steps(asked.get("step")), part = asked.get("problem").toLowerCase();
    if (range === null) return [];
    const problems = index.names.problem.map((name) => name.toLowerCase().includes(part));
    const status = asked.get("status") === "" ? -1 : Number(asked.get("status"));
    const all = [];
    for (let i = 0; i < c.step.length; i++) {
      const inRange = range[0] === -Infinity || (c.step[i] >= range[0] && c.step[i] <= range[1]);
      if (inRange && problems[c.problem[i]] && (status < 0 || c.status[i] === status)
          && advantageFits(c.advantage[i], asked.get("advantage"))) all.push(i);
    }
    const order = asked.get("order");
    if (order === "last") all.sort((a, b) => c.step[b] - c.step[a] || a - b);
    if (order === "high" || order === "low") {
      const sign = order === "high" ? -1 : 1, worst = Infinity;
      const key = (i) => (c.advantage[i] === null ? worst : sign * c.advantage[i]);
      all.sort((a, b) => (key(a) === key(b) ? a - b : key(a) - key(b)));
    }
    return all;
  }

  async function filter() {
    const mine = ++search, asked = new FormData(form), words = asked.get("text").toLowerCase();
    form.elements.step.classList.toggle("wrong", steps(asked.get("step")) === null);
    let all = matching(asked);
    page = 0;
    if (words) {
      const wanted = all, kept = new Set(), chunks = [...new Set(all.map((i) => Math.floor(i / index.chunk)))];
      const among = new Set(all);
      for (const [done, number] of chunks.entries()) {
        const first = number * index.chunk, last = Math.min(first + index.chunk, index.columns.step.length);
        for (let i = first; i < last; i++) {
          if (!among.has(i)) continue;
          const [, parts] = await text(i);
          if (mine !== search) return;
          if (parts.some((part) => part[1].toLowerCase().includes(words))) kept.add(i);
        }
        output.textContent = `searched ${done + 1} of ${chunks.length} parts, ${kept.size} found`;
        if (done % 8 === 7) await new Promise((go) => setTimeout(go));
      }
      all = wanted.filter((i) => kept.has(i));
    }
    if (mine !== search) return;
    found = all;
    await show();
  }

  function card(i, [words, parts]) {
    const c = index.columns, status = index.names.status[c.status[i]];
    const made = element("article", "rollout"), head = element("h4", "");
    const where = `step ${c.step[i]}, ${index.names.problem[c.problem[i]]}, sample ${c.sample[i]}: `;
    head.append(where, element("span", `status ${/^[a-z_]+$/.test(status) ? status : ""}`, status));
    head.append(words.startsWith(status) ? words.slice(status.length) : ` ${words}`);
    made.append(head);
    for (const [label, content, kind] of parts) {
      made.append(element("div", "label", label));
      made.append(element("pre", (kind & 1 ? "masked" : "own") + (kind & 2 ? " void" : ""), content));
    }
    return made;
  }

  async function show() {
    const mine = search, start = page * PER_PAGE, shown = found.slice(start, start + PER_PAGE);
    const cards = [];
    for (const i of shown) cards.push(card(i, await text(i)));
    if (mine !== search) return;
    list.replaceChildren(...cards);
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
    const counts = index.names.status.map(() => 0);
    for (const status of index.columns.status) counts[status]++;
    index.names.status.forEach((name, number) => {
      const option = element("option", "", `${name} (${counts[number].toLocaleString("en")})`);
      option.value = number;
      form.elements.status.append(option);
    });
  }

  async function begin() {
    index = await unpack(document.querySelector("script.index"));
    fillVerdicts();
    let timer;
    form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(filter, 150); });
    form.addEventListener("submit", (event) => event.preventDefault());
    section.querySelector("[name=back]").addEventListener("click", () => turn(-1));
    section.querySelector("[name=next]").addEventListener("click", () => turn(1));
    form.reset();
    section.hidden = false;
    await filter();
    document.body.dataset.ready = Math.round(performance.now());
  }

  begin();
})();
