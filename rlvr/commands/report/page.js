"use strict";
// The page of one run or several. Whatever a run says becomes text by `el` and `shown`, and never markup.
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const TOKEN = new URLSearchParams(location.search).get("token");
  const FLAG_WORDS = { near: "near miss", flagged: "rewarded, rejected by the monitor", repetitive: "repeats itself",
    unjudged: "not judged", void: "void turn", cut: "cut off", same: "same text as another", dropped: "dropped", values: "values of its tokens" };
  const INTEREST = { flagged: 6, near: 5, unjudged: 4, repetitive: 3, void: 2, cut: 1, same: -100 };
  const WINDOW = 10, MOST_CHANGED = 15;
  const PER_PAGE = 20, PROBLEMS_PER_PAGE = 60, MOST_HELD = 5000, POLL = 2000;
  const runs = [];

  // ---------- Text and elements

  // What Python's `printable` escapes: control characters, lone surrogates, marks that turn the direction of text.
  const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u{d800}-\u{dfff}]/gu;

  function shown(text) {
    return String(text).replace(HIDDEN, (found) => {
      const code = found.charCodeAt(0);
      return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
    });
  }

  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (typeof value === "function") made.addEventListener(name, value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, shown(value));
    }
    for (const child of children.flat(2)) {
      if (child === null || child === undefined || child === false) continue;
      made.append(child instanceof Node ? child : document.createTextNode(shown(child)));
    }
    return made;
  }

  function table(head, rows, texts = []) {
    const cell = (tag, value, place) => el(tag, { class: texts.includes(place) ? "text" : null }, value);
    return el("div", { class: "wide" }, el("table", {},
      el("thead", {}, el("tr", {}, head.map((value, i) => cell("th", value, i)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, i) => cell("td", value, i)))))));
  }

  function details(title, ...children) {
    return el("details", {}, el("summary", {}, title), ...children);
  }

  const number = (value, digits = 3) => value === null || value === undefined ? "" :
    Number.isInteger(value) || Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(digits + 1)).toString();
  const signed = (value) => value === null || value === undefined ? "none" : `${value < 0 ? "" : "+"}${value.toFixed(3)}`;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const count = (n, thing) => `${n.toLocaleString("en")} ${n === 1 ? thing : thing.replace(/^\S+/, "$&s")}`;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function debounced(action) {
    let timer;
    return () => { clearTimeout(timer); timer = setTimeout(action, 60); };
  }

  function copy(text, button) {
    const said = button.textContent;
    navigator.clipboard.writeText(text).then(
      () => { button.textContent = "copied"; setTimeout(() => { button.textContent = said; }, 1500); },
      () => { button.after(el("textarea", { rows: 3, readonly: true, "aria-label": "to copy" }, text)); });
  }

  // ---------- Data: from this file or, live, from the server that the page came from

  async function request(path, values) {
    const answer = await fetch(`${path}?${new URLSearchParams(TOKEN ? { ...values, token: TOKEN } : values)}`);
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer;
  }

  const ask = async (path, values) => (await request(path, values)).json();

  async function unpack(block) {
    const packed = atob(block.textContent), bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i += 1) bytes[i] = packed.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  async function read(kind, run, place) {
    if (DATA.live) return ask(kind, { run, number: place });
    const block = document.getElementById(`${kind}-${run}-${place}`);
    return block ? unpack(block) : [];
  }

  // The texts of rollouts, null where the page has none.
  async function textsOf(run, rows) {
    const { texts, index } = run, missing = rows.filter((row) => !texts.has(row) && index.chunk[row] >= 0);
    const hold = (found, packed) => found.forEach((row, i) => texts.set(row, packed[i]));
    if (DATA.live) {
      if (texts.size > MOST_HELD) texts.clear();
      const asked = rows.filter((row) => !texts.has(row));
      if (asked.length) hold(asked, await ask("texts", { run: run.number, numbers: asked.join() }));
    } else {
      const chunks = new Set(rows.filter((row) => !texts.has(row)).map((row) => index.chunk[row]));
      for (const chunk of chunks) if (chunk >= 0) hold(index.rows.get(chunk), await read("texts", run.number, chunk));
    }
    return rows.map((row) => texts.get(row) ?? null);
  }

  // Yields which rows have a text, a byte for each: as soon as those of a first page are known, then for all of them.
  async function* rowsWithText(run, text) {
    if (DATA.live) {
      const answer = await request("search", { run: run.number, text });
      yield { found: new Uint8Array(await answer.arrayBuffer()), whole: true };
      return;
    }
    const asked = text.toLowerCase(), found = new Uint8Array(run.index.count);
    let number = 0, first = true;
    for (const [chunk, rows] of run.index.rows) {
      if (chunk < 0) continue;
      const { all, ends } = run.lower.get(chunk) ?? await lowerCase(run, rows);
      for (let at = all.indexOf(asked), i = 0; at >= 0; at = all.indexOf(asked, ends[i])) {
        while (ends[i] <= at) i += 1;
        found[rows[i]] = 1;
        number += 1;
      }
      if (first && number >= PER_PAGE) { first = false; yield { found, whole: false }; }
    }
    yield { found, whole: true };
  }

  // The texts of a chunk in lower case, as one, and where that of each rollout ends.
  async function lowerCase(run, rows) {
    let end = 0;
    const parts = (await textsOf(run, rows)).map((packed) => `${packed ? packed[2].map((part) => part[2]).join("\0").toLowerCase() : ""}\0`);
    const made = { all: parts.join(""), ends: parts.map((text) => end += text.length) };
    run.lower.set(run.index.chunk[rows[0]], made);
    return made;
  }

  // Reads the texts of a file while nothing else is to do, so that the first search finds them there.
  async function readAhead() {
    for (const run of runs) {
      for (const [chunk, rows] of run.index.rows) {
        await new Promise((resolve) => { (window.requestIdleCallback ?? setTimeout)(resolve); });
        if (chunk >= 0 && !run.lower.has(chunk)) await lowerCase(run, rows);
      }
    }
    document.body.dataset.searchable = Math.round(performance.now());
  }

  const emptyIndex = () => ({ count: 0, step: [], problem: [], sample: [], status: [], reward: [], advantage: [],
    tokens: [], flags: [], chunk: [], problems: [], statuses: [], rows: new Map() });

  function merge(content, place) {
    const run = runs[place] ??= { number: place, generation: -1, metrics: Object.create(null), rows: 0, index: emptyIndex(),
      texts: new Map(), lower: new Map(), keys: new Map(), derived: null };
    if (content.generation !== run.generation) {
      Object.assign(run, { metrics: Object.create(null), rows: 0, index: emptyIndex(), texts: new Map(), lower: new Map() });
    }
    const added = content.metrics.step?.length ?? 0;
    for (const name of new Set([...Object.keys(run.metrics), ...Object.keys(content.metrics)])) {
      const column = run.metrics[name] ??= new Array(run.rows).fill(null);
      column.push(...(content.metrics[name] ?? new Array(added).fill(null)));
    }
    run.rows += added;
    let path = 0;
    if (run.metrics.update_kl) run.metrics.path = run.metrics.update_kl.map((value) => { path += value ?? 0; return path; });
    const { metrics: _, ...rest } = content;
    Object.assign(run, rest);
    return added > 0;
  }

  async function readRollouts(run) {
    const held = run.index.count;
    if (held >= run.rollouts) return false;
    const found = await read("rollouts", run.number, held), index = run.index;
    if (!found.columns || held !== index.count) return false;
    for (const [name, column] of Object.entries(found.columns)) index[name] = index[name].concat(column);
    for (let row = held; row < index.step.length; row += 1) {
      const chunk = index.chunk[row], rows = index.rows.get(chunk) ?? [];
      index.rows.set(chunk, rows);
      rows.push(row);
    }
    [index.problems, index.statuses, index.count] = [found.names.problem, found.names.status, index.step.length];
    index.right = index.statuses.indexOf("correct");
    run.derived = null;
    run.keys = new Map();
    return true;
  }

  // Numbers of each step that the page computes from the rollouts.
  function derived(run) {
    if (run.derived) return run.derived;
    const index = run.index, steps = new Map();
    for (let row = 0; row < index.count; row += 1) {
      const held = steps.get(index.step[row]) ?? { all: [], right: [], wrong: [], rewards: [] };
      steps.set(index.step[row], held);
      if (index.tokens[row] !== null) {
        held.all.push(index.tokens[row]);
        (index.status[row] === index.right ? held.right : held.wrong).push(index.tokens[row]);
      }
      if (index.reward[row] !== null) held.rewards.push(index.reward[row]);
    }
    const mean = (values) => values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
    const x = [...steps.keys()].filter((step) => step !== null).sort((a, b) => a - b);
    const made = { step: x };
    const fill = (name, value) => { made[`rollouts/${name}`] = x.map((step) => value(steps.get(step))); };
    for (const held of steps.values()) held.all.sort((a, b) => a - b);
    for (const share of [10, 50, 90]) {
      fill(`length_p${share}`, ({ all }) => all.length ? all[Math.floor((all.length - 1) * share / 100)] : null);
    }
    fill("length_correct", ({ right }) => mean(right));
    fill("length_wrong", ({ wrong }) => mean(wrong));
    fill("reward_std", ({ rewards }) => {
      const middle = mean(rewards);
      return rewards.length > 1 ? Math.sqrt(mean(rewards.map((r) => (r - middle) ** 2))) : null;
    });
    run.derived = made;
    return made;
  }

  // ---------- Curves

  const COLORS = ["#1f6feb", "#d1495b", "#2e933c", "#8957e5", "#bf8700", "#008c95", "#8a6d3b", "#6e7781"];
  const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [12, 4]];
  const MARKS = { evaluation: "#8c959f", alarm: "#b35900", rollback: "#8957e5", regression: "#cf222e", resume: "#1f6feb",
    stopped: "#bf8700", failed: "#cf222e", changed: "#008c95" };
  const curves = { smoothing: 5, log: false, events: true, range: null, charts: new Set() };

  function column(run, name) {
    const held = name.startsWith("rollouts/") ? derived(run) : run.metrics;
    return held[name] && held[name].some((value) => value !== null) ? { x: held.step, y: held[name] } : null;
  }

  function expand(numbers) {
    const found = new Map();
    for (const [name, label] of Object.entries(numbers)) {
      if (!name.includes("*")) { found.set(name, label); continue; }
      const [begin, end] = name.split("*");
      for (const run of runs) {
        for (const own of Object.keys(run.metrics)) {
          if (own.startsWith(begin) && own.endsWith(end)) found.set(own, own.slice(begin.length, own.length - end.length));
        }
      }
    }
    return found;
  }

  function smooth(values, width) {
    if (width <= 1) return values;
    let sum = 0, held = [];
    return values.map((value) => {
      if (value === null) return null;
      held.push(value);
      sum += value;
      if (held.length > width) sum -= held.shift();
      return sum / held.length;
    });
  }

  function onSteps(found, steps) {
    const held = new Map(found.x.map((step, i) => [step, found.y[i]]));
    return steps.map((step) => held.get(step) ?? null);
  }

  // Lines of a panel: {label, color, dash, values, low, high, faint}, on shared steps.
  function linesOf(panel) {
    const conditions = [...new Set(runs.map((run) => run.condition))];
    const parts = [];
    for (const [name, label] of expand(panel.numbers)) {
      for (const condition of conditions) {
        const found = runs.filter((run) => run.condition === condition).map((run) => column(run, name)).filter(Boolean);
        if (found.length) parts.push({ name, label, condition, found });
      }
    }
    const steps = [...new Set(parts.flatMap((part) => part.found.flatMap((one) => one.x)))].sort((a, b) => a - b);
    const names = [...new Set(parts.map((part) => part.name))];
    const width = Math.round(steps.length * curves.smoothing / 100);
    const lines = parts.map((part) => {
      const alone = conditions.length === 1, place = names.indexOf(part.name);
      const rows = part.found.map((one) => onSteps(one, steps)), smoothed = rows.map((row) => smooth(row, width));
      const over = (choose) => steps.map((_, i) => {
        const values = smoothed.map((row) => row[i]).filter((value) => value !== null);
        return values.length === rows.length ? choose(values) : null;
      });
      return {
        label: alone ? part.label : names.length === 1 ? part.condition : `${part.condition}: ${part.label}`,
        color: COLORS[(alone ? place : conditions.indexOf(part.condition)) % COLORS.length],
        dash: DASHES[place % DASHES.length],
        faint: rows.length === 1 && width > 1 && !panel.stacked ? rows[0] : null,
        values: over((values) => values.reduce((a, b) => a + b, 0) / values.length),
        low: rows.length > 1 ? over((values) => Math.min(...values)) : null,
        high: rows.length > 1 ? over((values) => Math.max(...values)) : null,
      };
    });
    return { steps, lines };
  }

  function evaluationLines(names) {
    const steps = [...new Set(runs.flatMap((run) => run.evaluations.map((row) => row.step)))].sort((a, b) => a - b);
    const pairs = runs.flatMap((run) => names.map((name) => ({ run, name })))
      .filter(({ run, name }) => run.evaluations.some((row) => typeof row[name] === "number"));
    const lines = pairs.map(({ run, name }) => {
      const at = new Map(run.evaluations.map((row) => [row.step, row]));
      const end = (i) => steps.map((step) => at.get(step)?.[`${name}_ci`]?.[i] ?? null);
      return { label: runs.length === 1 ? name : names.length === 1 ? run.label : `${run.label}: ${name}`,
        color: COLORS[(runs.length === 1 ? names.indexOf(name) : run.number) % COLORS.length],
        dash: DASHES[runs.length === 1 ? 0 : names.indexOf(name) % DASHES.length],
        values: steps.map((step) => at.get(step)?.[name] ?? null), low: end(0), high: end(1), points: true };
    });
    return { steps, lines };
  }

  function panelsOf(group) {
    const made = [];
    if (group === "Learning") {
      const known = new Set(runs.flatMap((run) => run.passes.names.map((name) => name.replace(" pass", "_pass"))));
      const [plain, variants] = [/^pass@/, /_pass@/].map((form) => [...known].filter((name) => form.test(name)));
      const others = [...known].filter((name) => !name.includes("pass@"));
      const shares = runs.length > 1 ? plain.map((name) => [name]) : [plain];
      for (const names of [...shares, ...others.map((name) => [name]), variants].filter((held) => held.length)) {
        const title = names.length === 1 ? names[0] : names === variants ? "pass@k by other extractions" : "pass@k";
        made.push({ title: `held-out ${title}, 95 % intervals`, numbers: {}, lines: () => evaluationLines(names) });
      }
    }
    for (const [title, numbers] of DATA.panels[group]) {
      const stacked = title.startsWith("stacked: ") && runs.length === 1;
      const panel = { title: title.replace("stacked: ", ""), numbers, stacked };
      made.push({ ...panel, lines: () => linesOf(panel) });
    }
    return made.filter((panel) => panel.lines().lines.length);
  }

  function marks() {
    return runs.flatMap((run) => [
      ...run.events.filter((event) => Object.hasOwn(MARKS, event.kind)).map((event) => ({ ...event, step: Number(event.step) })),
      ...run.alarms.filter((alarm) => !run.events.some((e) => e.kind === "alarm" && Number(e.step) === alarm.step))
        .map((alarm) => ({ step: alarm.step, kind: "alarm", message: Object.keys(alarm.signs).join(", ") })),
      ...run.evaluations.map((row) => ({ step: row.step, kind: "evaluation", message: "" })),
    ].map((mark) => ({ ...mark, run: run.label })));
  }

  function drawMarks(chart) {
    if (!curves.events) return;
    const { ctx, bbox } = chart;
    ctx.save();
    for (const mark of marks()) {
      const x = chart.valToPos(mark.step, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = MARKS[mark.kind];
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash(mark.kind === "evaluation" ? [] : [4, 3]);
      ctx.beginPath();
      ctx.moveTo(x, mark.kind === "evaluation" ? bbox.top + bbox.height - 5 * devicePixelRatio : bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function seriesOf({ steps, lines }, stacked) {
    const data = [steps], series = [{ label: "step" }], bands = [], positive = (values) =>
      curves.log ? values.map((value) => value > 0 ? value : null) : values;
    const add = (values, { label, ...more }) => {
      data.push(positive(values));
      series.push({ label: shown(label), spanGaps: true, points: { show: false }, ...more });
    };
    const hidden = (stroke) => ({ stroke: `${stroke}00`, width: 0, class: "hidden" });
    let below = steps.map(() => 0);
    for (const line of lines) {
      const stroke = line.color;
      if (stacked) {
        below = below.map((sum, i) => sum + (line.values[i] ?? 0));
        add(below, { label: line.label, stroke, fill: `${stroke}55`, width: 1,
          value: (chart, _, place, i) => i === null ? "" : number(data[place][i] - (place > 1 ? data[place - 1][i] : 0)) });
        if (data.length > 2) bands.push({ series: [data.length - 1, data.length - 2], fill: `${stroke}88` });
        continue;
      }
      if (line.low) {
        add(line.high, { label: `${line.label}, highest`, ...hidden(stroke) });
        add(line.low, { label: `${line.label}, lowest`, ...hidden(stroke) });
        bands.push({ series: [data.length - 2, data.length - 1], fill: `${stroke}26` });
      }
      if (line.faint) add(line.faint, { label: `${line.label}, each step`, stroke: `${stroke}40`, width: 1 });
      add(line.values, { label: line.label, stroke, width: 2, dash: line.dash, points: { show: Boolean(line.points), size: 6 },
        value: (_, value) => number(value) });
    }
    return { data, series, bands };
  }

  function makeChart(panel, place, near) {
    const { data, series, bands } = seriesOf(panel.lines(), panel.stacked);
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") }, font: "11px system-ui" };
    const chart = new uPlot({
      width: Math.max(place.clientWidth, 240), height: 220, series, bands,
      scales: { x: { time: false, range: (_, low, high) => curves.range ?? (low === high ? [low - 1, high + 1] : [low, high]) },
        y: curves.log ? { distr: 3 } : { range: (_, low, high) => low === null ? [0, 1] : panel.stacked ? [0, high * 1.05 || 1] : low < high ? uPlot.rangeNum(low, high, 0.1, true) :
          low ? [low - Math.abs(low) / 10, low + Math.abs(low) / 10] : [0, 1] } },
      axes: [{ ...axis, space: 60 }, { ...axis, size: 52, values: (_, values) => values.map((value) => value === null ? "" : number(value)) }],
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false, setScale: false } },
      legend: { live: true },
      hooks: {
        draw: [drawMarks],
        setSelect: [(self) => {
          const { left, width } = self.select;
          if (width < 4) return;
          self.setSelect({ left: 0, width: 0 }, false);
          zoomTo([self.posToVal(left, "x"), self.posToVal(left + width, "x")]);
        }],
        setCursor: [(self) => {
          const step = self.cursor.left >= 0 ? self.posToVal(self.cursor.left, "x") : null;
          const reach = step === null ? 0 : (self.scales.x.max - self.scales.x.min) / 80;
          const found = step === null || !curves.events ? [] : marks().filter((mark) => Math.abs(mark.step - step) <= reach);
          near.textContent = shown(found.map((m) => `step ${m.step}: ${m.kind}${m.message ? `, ${m.message}` : ""}`).join(" · ").slice(0, 300));
        }],
      },
    }, data, place);
    chart.root.querySelectorAll(".u-legend .u-series").forEach((row, i) => {
      if (/, (highest|lowest|each step)$/.test(series[i].label)) row.hidden = true;
    });
    return chart;
  }

  function domain() {
    const steps = runs.flatMap((run) => [...(run.metrics.step ?? []), ...run.evaluations.map((row) => row.step)]);
    return [steps.reduce((a, b) => Math.min(a, b), Infinity), steps.reduce((a, b) => Math.max(a, b), -Infinity)];
  }

  function zoomTo(range) {
    curves.range = range;
    for (const view of curves.charts) view.chart?.setData(view.chart.data);
    document.body.dataset.zoom = range ? range.map((end) => end.toFixed(1)).join(" ") : "";
  }

  function move(by, factor) {
    const [low, high] = curves.range ?? domain(), middle = (low + high) / 2 + by * (high - low), half = (high - low) / 2 * factor;
    zoomTo([middle - half, middle + half]);
  }

  function pan(event, view) {
    if (!event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    event.stopPropagation();
    const begin = event.clientX, [low, high] = curves.range ?? domain(), width = view.chart.over.clientWidth;
    const drag = (moved) => {
      const by = (begin - moved.clientX) / width * (high - low);
      zoomTo([low + by, high + by]);
    };
    window.addEventListener("mousemove", drag);
    window.addEventListener("mouseup", () => window.removeEventListener("mousemove", drag), { once: true });
  }

  const KEYS = { "+": () => move(0, 0.5), "-": () => move(0, 2), ArrowLeft: () => move(-0.25, 1), ArrowRight: () => move(0.25, 1), 0: () => zoomTo(null) };

  function panelView(panel) {
    const place = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${panel.title}; keys: + - arrows 0`,
      keydown: (event) => { if (KEYS[event.key]) { event.preventDefault(); KEYS[event.key](); } },
      dblclick: () => zoomTo(null) });
    const near = el("div", { class: "near" }), view = { chart: null };
    place.addEventListener("mousedown", (event) => pan(event, view), true);
    const rows = [...expand(panel.numbers).keys()].map((name) => [name, meaning(name)]).filter(([, row]) => row);
    const made = el("div", { class: "panel" }, el("h3", {}, panel.title), place, near,
      rows.length > 0 && details("what it means", el("ul", {}, rows.map(([name, [unit, text, healthy]]) => el("li", {},
        el("b", {}, name), unit ? ` (${unit})` : "", `: ${text}.`, healthy ? ` Healthy: ${healthy}.` : "")))));
    view.draw = () => { view.chart?.destroy(); view.chart = makeChart(panel, place, near); };
    view.update = () => {
      if (!view.chart) return;
      const { data } = seriesOf(panel.lines(), panel.stacked);
      if (data.length === view.chart.data.length) view.chart.setData(data); else view.draw();
    };
    const seen = new IntersectionObserver((entries) => {
      if (!view.chart && entries.some((entry) => entry.isIntersecting)) view.draw();
    }, { rootMargin: "300px" });
    seen.observe(place);
    new ResizeObserver(() => {
      const width = Math.max(place.clientWidth, 240);
      if (view.chart && view.chart.width !== width) view.chart.setSize({ width, height: 220 });
    }).observe(place);
    curves.charts.add(view);
    return made;
  }

  function meaning(name) {
    const found = Object.keys(DATA.meanings).find((row) => row.endsWith("*") ? name.startsWith(row.slice(0, -1)) : row === name);
    return found && DATA.meanings[found];
  }

  function curveControls(asked) {
    const redraw = () => { for (const view of curves.charts) if (view.chart) view.draw(); }, later = debounced(redraw);
    const check = (name, label) => el("label", {}, el("input", { type: "checkbox", name, checked: curves[name],
      change: (event) => { curves[name] = event.target.checked; redraw(); } }), ` ${label}`);
    const button = (name, label, action) => el("button", { type: "button", title: label, "aria-label": label, click: action }, name);
    return el("div", { class: "controls" },
      el("label", {}, "smoothing ", el("input", { type: "range", name: "smoothing", min: 0, max: 50, value: curves.smoothing,
        input: (event) => { curves.smoothing = Number(event.target.value); later(); } })),
      check("log", "logarithmic"), check("events", "events"),
      el("span", {}, button("+", "zoom in", KEYS["+"]), button("−", "zoom out", KEYS["-"]), button("←", "earlier", KEYS.ArrowLeft),
        button("→", "later", KEYS.ArrowRight), button("all", "all steps", KEYS[0])),
      el("label", {}, "what changed after step ", el("input", { name: "at", inputmode: "numeric", size: 6, value: asked.at ?? "",
        change: (event) => go("curves", { at: event.target.value }) })),
      el("span", { class: "soft" }, "Drag to zoom, shift and drag to pan, double click for all."));
  }

  function groupView(group) {
    const panels = panelsOf(group);
    return panels.length ? [el("h2", {}, group), el("div", { class: "panels" }, panels.map(panelView))] : [];
  }

  // The numbers that moved most at a step against their spread: their means over WINDOW steps before it and after it.
  function changesAt(run, step) {
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length, found = [];
    for (const [name, column] of Object.entries(run.metrics)) {
      if (/^(step|path|tokens_per_second|(memory|seconds|idle)\/.*)$/.test(name)) continue;
      const filled = name.startsWith("status/") ? column.map((value) => value ?? 0) : column;
      const [before, after] = [[step - WINDOW, step], [step, step + WINDOW]].map(([from, to]) =>
        filled.filter((value, i) => value !== null && run.metrics.step[i] > from && run.metrics.step[i] <= to));
      if (!before.length || !after.length) continue;
      const [a, b] = [mean(before), mean(after)], spread = Math.sqrt(mean([...before.map((v) => (v - a) ** 2), ...after.map((v) => (v - b) ** 2)]));
      if (a !== b) found.push([Math.abs(b - a) / (spread + 0.02 * Math.max(Math.abs(a), Math.abs(b))), [placeOf(run, name, step), number(a), number(b), meaning(name)?.[1] ?? ""]]);
    }
    return found.sort((x, y) => y[0] - x[0]).slice(0, MOST_CHANGED).map(([, row]) => row);
  }

  const placeOf = (run, name, step) => name.startsWith("status/") && run.rollouts
    ? link("rollouts", { run: run.label, status: name.slice(7), step: `${step + 1}-${step + WINDOW}` }, name) : name;

  // Links to what there is to read of the steps before and after one.
  function aroundStep(run, step) {
    const [before, after] = [run.answers.filter((at) => at < step).pop(), run.answers.find((at) => at > step)];
    const rollouts = (from) => run.rollouts > 0 && link("rollouts", { run: run.label, step: `${Math.max(1, from)}-${from + WINDOW - 1}`, order: "last" }, `rollouts of steps ${Math.max(1, from)} to ${from + WINDOW - 1}`);
    const answers = before !== undefined && after !== undefined && link("held-out", { a: `${run.label}@${before}`, b: `${run.label}@${after}`, kind: "regressed" },
      `held-out problems that regressed from step ${before} to ${after}`);
    return el("p", { class: "around" }, [rollouts(step - WINDOW + 1), rollouts(step + 1), answers].filter(Boolean).flatMap((one, i) => i ? [" · ", one] : [one]));
  }

  function changesView(asked) {
    const step = Number(asked.at), said = runs.flatMap((run) => run.events.filter((event) => Math.abs(Number(event.step) - step) <= 2).map((event) =>
      el("p", {}, el("b", {}, `after step ${event.step}, ${event.kind}`), `: ${event.message}`)));
    const tables = runs.map((run) => [runs.length > 1 && el("h3", {}, run.label), aroundStep(run, step), table(["metric", `${WINDOW} steps before`, `${WINDOW} steps after`, "meaning"], changesAt(run, step), [0, 3])]);
    return asked.at && Number.isFinite(step) ? [...said, ...tables.flat().filter(Boolean)] : [];
  }

  function viewCurves(root, asked) {
    root.append(curveControls(asked), ...changesView(asked), ...Object.keys(DATA.panels).flatMap(groupView));
    return () => { for (const view of curves.charts) view.update(); };
  }

  // ---------- Overview and settings

  function headOf(run) {
    const { head } = run;
    return [
      el("p", {}, el("b", {}, runs.length > 1 ? `${run.label}: ` : "", head.state), head.facts.map(([word, value]) =>
        [" · ", el("span", { class: "soft" }, `${word} `), value])),
      el("p", { class: "result" }, head.result),
      head.warnings.map((line) => el("p", { class: "warning" }, line)),
      head.changed.length > 0 && details(`${count(head.changed.length, "setting")} changed from the defaults`,
        table(["setting", "default", "here"], head.changed, [0, 1, 2])),
    ];
  }

  function edges(run, name) {
    const values = (run.metrics[name] ?? []).filter((value) => value !== null), tenth = Math.max(1, Math.floor(values.length / 10));
    const mean = (part) => number(part.reduce((a, b) => a + b, 0) / part.length);
    return values.length ? [mean(values.slice(0, tenth)), mean(values.slice(-tenth))] : null;
  }

  function metricsTable(run) {
    const rows = Object.keys(run.metrics).filter((name) => name !== "step").map((name) => [name, ...(edges(run, name) ?? ["", ""]), meaning(name)?.[1] ?? ""]);
    return rows.length > 0 && details("all metrics", table(["metric", "first tenth of the steps", "last tenth", "meaning"], rows, [0, 3]));
  }

  function passSection(run) {
    const { names, rows, packs, note } = run.passes;
    return names.length ? [el("h2", {}, "Held-out problems"), el("p", { class: "soft" }, note), table(["step", ...names], rows),
      packs.length > 0 && details("by pack", table(["pack", "step", ...names], packs))] : [];
  }

  function eventsSection(run) {
    const alarms = run.alarms.map((alarm) => el("div", {}, el("h3", {}, `Alarm at step ${alarm.step}: the reward may be hacked`),
      el("ul", {}, Object.entries(alarm.signs).map(([name, text]) => el("li", {}, `${name}: ${text}`))),
      table(Object.keys(alarm.figures), [Object.values(alarm.figures).map((v) => typeof v === "number" ? number(v) : v)]),
      el("p", {}, link("rollouts", { run: run.label, step: alarm.step, flag: "flagged" }, "rewarded, and rejected by the monitor"))));
    const rows = run.events.map((event) => [event.time, link("curves", { at: event.step }, event.step), event.kind, event.message]);
    return [alarms.length > 0 && el("h2", {}, "Alarms"), ...alarms,
      rows.length > 0 && el("h2", {}, "Events"), rows.length > 0 && table(["time", "after step", "kind", "what happened"], rows, [2, 3])];
  }

  function comparison() {
    const names = ["reward", "monitor/score", "monitor/rank"].filter((name) => runs.some((run) => run.metrics[name]));
    const held = runs.flatMap((run) => run.passes.names).filter((name, i, all) => all.indexOf(name) === i);
    const pass = (run, name) => {
      const place = run.passes.names.indexOf(name) + 1, rows = run.passes.rows.filter((row) => row[0] !== "change");
      return place && rows.length ? `${rows[0][place]} → ${rows[rows.length - 1][place]}` : "";
    };
    return table(["run", "state", ...names, ...held.map((name) => `held-out ${name}`)], runs.map((run) => [link("rollouts", { run: run.label }, run.label),
      run.head.state, ...names.map((name) => edges(run, name)?.join(" → ") ?? ""), ...held.map((name) => pass(run, name))]), [1]);
  }

  function viewOverview(root) {
    const draw = () => {
      const parts = runs.length > 1 ? [comparison()] : [], open = opened(root);
      root.replaceChildren(...[...parts, ...runs.flatMap(headOf)].flat(2).filter(Boolean), ...charts,
        ...runs.flatMap((run) => [runs.length > 1 && el("h2", {}, run.label), ...passSection(run), ...eventsSection(run), metricsTable(run)]).flat(2).filter(Boolean));
      reopen(root, open);
    };
    const charts = [curveControls({}), ...groupView("Learning")];
    draw();
    return () => { draw(); for (const view of curves.charts) view.update(); };
  }

  const opened = (root) => [...root.querySelectorAll("details[open]")].map((made) => made.firstChild.textContent);

  function reopen(root, titles) {
    for (const made of root.querySelectorAll("details")) if (titles.includes(made.firstChild.textContent)) made.open = true;
  }

  // Draws a view anew, unless somebody is using it.
  function redrawing(root, draw) {
    return () => {
      if (root.contains(document.activeElement) || opened(root).length) return;
      root.replaceChildren();
      draw();
    };
  }

  function viewSettings(root) {
    for (const run of runs) root.append(el("h2", {}, run.label), table(["setting", "default", "here"], run.head.changed, [0, 1, 2]), el("pre", {}, run.head.settings));
  }

  // ---------- Problems

  function histories(run) {
    const index = run.index, found = new Map();
    for (let row = 0; row < index.count; row += 1) {
      const name = index.problem[row], own = found.get(name) ?? found.set(name, new Map()).get(name);
      const visit = own.get(index.step[row]) ?? own.set(index.step[row], { step: index.step[row], count: 0, right: 0 }).get(index.step[row]);
      visit.count += 1;
      visit.right += index.status[row] === index.right;
    }
    return [...found].map(([place, visits]) => describeProblem(index.problems[place], [...visits.values()].sort((a, b) => a.step - b.step)));
  }

  // learned, forgotten: the pass rate of the later half of the visits is .25 above, or below, that of the earlier half.
  function describeProblem(name, visits) {
    const rate = (part) => part.reduce((sum, v) => sum + v.right, 0) / Math.max(1, part.reduce((sum, v) => sum + v.count, 0));
    const half = Math.ceil(visits.length / 2), all = rate(visits);
    const [first, last] = [rate(visits.slice(0, half)), rate(visits.slice(visits.length > 1 ? half : 0))];
    const kind = all === 0 ? "never solved" : all === 1 ? "always solved" : last - first >= 0.25 ? "learned" : first - last >= 0.25 ? "forgotten" : "mixed";
    return { name, visits, first, last, all, kind, pack: name.includes("/") ? name.slice(0, name.lastIndexOf("/")) : "" };
  }

  const KINDS = { "": "all", "never solved": "never solved", learned: "learned", forgotten: "forgotten", "always solved": "always solved", mixed: "mixed" };
  const ORDERS = { change: (a, b) => (b.last - b.first) - (a.last - a.first), hardest: (a, b) => a.all - b.all, easiest: (a, b) => b.all - a.all,
    "last seen": (a, b) => b.visits[b.visits.length - 1].step - a.visits[a.visits.length - 1].step, name: (a, b) => a.name < b.name ? -1 : 1 };

  function shade(rate) {
    const [low, high] = [color("--low"), color("--high")].map((text) => text.split(",").map(Number));
    return `rgb(${low.map((value, i) => Math.round(value + (high[i] - value) * rate)).join(",")})`;
  }

  function heatMap(run, problems) {
    const steps = run.index.step, [low, high] = steps.reduce(([a, b], s) => [Math.min(a, s), Math.max(b, s)], [Infinity, -Infinity]);
    const bins = Math.max(1, Math.min(high - low + 1, 300)), height = problems.length > 50 ? 6 : 12;
    const canvas = el("canvas", { class: "heat", width: 900, height: Math.max(problems.length * height, 12), role: "img",
      "aria-label": "pass rates of problems (rows) by step (columns)" });
    const said = el("p", { class: "soft" }, `Rows: problems in the order of the table. Columns: steps ${low} to ${high}. From orange (none right) to blue (all right).`);
    const draw = canvas.getContext("2d"), width = canvas.width / bins, bin = (step) => Math.floor((step - low) / (high - low + 1) * bins);
    const shades = Array.from({ length: 21 }, (_, i) => shade(i / 20));
    problems.forEach((problem, row) => {
      for (const visit of problem.visits) {
        draw.fillStyle = shades[Math.round(visit.right / visit.count * 20)];
        draw.fillRect(bin(visit.step) * width, row * height, Math.max(width, 3), height - 1);
      }
    });
    const at = (event) => {
      const box = canvas.getBoundingClientRect(), problem = problems[Math.floor((event.clientY - box.top) / box.height * problems.length)];
      const place = (event.clientX - box.left) / box.width * bins;
      return problem && { problem, visit: problem.visits.reduce((best, v) => Math.abs(bin(v.step) - place) < Math.abs(bin(best.step) - place) ? v : best) };
    };
    canvas.addEventListener("mousemove", (event) => {
      const found = at(event);
      if (found) said.textContent = shown(`${found.problem.name}, step ${found.visit.step}: ${found.visit.right} of ${found.visit.count} right`);
    });
    canvas.addEventListener("click", (event) => {
      const found = at(event);
      if (found) go("rollouts", { run: run.label, step: found.visit.step, problem: found.problem.name });
    });
    return [canvas, said];
  }

  function viewProblems(root, asked) {
    const run = runOf(asked), all = histories(run), packs = [...new Set(all.map((problem) => problem.pack))];
    const kinds = Object.keys(KINDS).map((kind) => [kind, `${KINDS[kind]} (${all.filter((p) => !kind || p.kind === kind).length})`]);
    const order = Object.hasOwn(ORDERS, asked.order) ? asked.order : all.some((problem) => problem.visits.length > 1) ? "change" : "hardest", page = Number(asked.page ?? 0);
    const found = all.filter((p) => (!asked.kind || p.kind === asked.kind) && (!asked.pack || p.pack === asked.pack)
      && p.name.toLowerCase().includes((asked.name ?? "").toLowerCase())).sort(ORDERS[order]);
    const part = found.slice(page * PROBLEMS_PER_PAGE, (page + 1) * PROBLEMS_PER_PAGE), set = (values) => go("problems", { ...asked, page: 0, ...values });
    root.append(...[
      el("div", { class: "controls" }, runPicker("problems", asked),
        choice("kind", kinds, asked.kind, (kind) => set({ kind })),
        packs.length > 1 && choice("pack", [["", "all"], ...packs.filter(Boolean).map((pack) => [pack, pack])], asked.pack, (pack) => set({ pack })),
        choice("order", Object.keys(ORDERS).map((name) => [name, name]), order, (value) => set({ order: value })),
        el("label", {}, "problem ", el("input", { name: "name", type: "search", value: asked.name ?? "", change: (e) => set({ name: e.target.value }) }))),
      el("p", { class: "soft" }, "learned, forgotten: the pass rate of the later half of a problem's visits is .25 above, or below, that of the earlier half."),
      ...(part.length ? heatMap(run, part) : [el("p", {}, run.index.count ? "No such problem." : "No rollouts yet.")]),
      pager(page, PROBLEMS_PER_PAGE, found.length, "problem", (next) => set({ page: next })),
      part.length > 0 && table(["problem", "kind", "visits", "earlier half", "later half", "all", "last step"], part.map((p) => [
        link("rollouts", { run: run.label, problem: p.name }, p.name), p.kind, p.visits.length, percent(p.first), percent(p.last), percent(p.all),
        p.visits[p.visits.length - 1].step])),
    ].filter(Boolean));
    return redrawing(root, () => viewProblems(root, asked));
  }

  // ---------- Held-out answers

  function describeAnswers(rows) {
    return new Map(rows.map((row) => [row.problem, { ...row, rate: row.answers.filter((a) => a.correct).length / Math.max(1, row.answers.length) }]));
  }

  // What changed a problem's rate, where its answers tell: "verdict" of the same text, or "reply" to the same turns.
  function causeOf(row) {
    for (const one of row.a.answers) for (const other of row.b.answers) {
      if (one.correct === other.correct) continue;
      const at = one.parts.findIndex(([role, , text], i) => other.parts[i]?.[0] !== role || other.parts[i][2] !== text);
      if (at < 0 && one.parts.length === other.parts.length) return "verdict";
      if (at > 0 && one.parts[at][0] !== "assistant" && other.parts[at]?.[0] === one.parts[at][0]) return "reply";
    }
    return "";
  }

  function causesView(regressed) {
    const causes = regressed.map(causeOf), of = (name) => causes.filter((cause) => cause === name).length;
    return [["verdict", "the same completion has another verdict: the verifier changed or is random, and not the policy."],
      ["reply", "the environment gives another reply to the same turns: it changed or is random, and not the policy."]]
      .filter(([name]) => of(name)).map(([name, text]) => el("p", { class: "warning" }, `In ${of(name)} of ${regressed.length} that regressed ${text}`));
  }

  async function viewHeldOut(root, asked) {
    const kept = runs.flatMap((run) => run.answers.map((step) => ({ key: `${run.label}@${step}`, run, step })));
    if (!kept.length) {
      root.append(el("p", {}, "No held-out answers were kept: there was no evaluation yet, or eval.keep_answers is 0."));
      return redrawing(root, () => viewHeldOut(root, asked));
    }
    const lasts = runs.filter((run) => run.answers.length).map((run) => `${run.label}@${run.answers[run.answers.length - 1]}`);
    const named = (key, otherwise) => kept.find((one) => one.key === key) ?? kept.find((one) => one.key === otherwise);
    const [a, b] = [named(asked.a, lasts.length > 1 ? lasts[0] : kept[0].key), named(asked.b, lasts[lasts.length - 1])];
    const set = (values) => go("held-out", { ...asked, a: a.key, b: b.key, ...values });
    const [first, second] = (await Promise.all([a, b].map((one) => read("answers", one.run.number, one.step)))).map(describeAnswers);
    const both = [...first.values()].filter((row) => second.has(row.problem)).map((row) => ({ name: row.problem, a: row, b: second.get(row.problem) }));
    const change = (row) => row.b.rate - row.a.rate;
    const groups = { "": both, improved: both.filter((row) => change(row) > 0), regressed: both.filter((row) => change(row) < 0), equal: both.filter((row) => change(row) === 0) };
    const found = [...groups[Object.hasOwn(groups, asked.kind) ? asked.kind : ""]].filter((row) => row.name.toLowerCase().includes((asked.name ?? "").toLowerCase()))
      .sort((x, y) => Math.abs(change(y)) - Math.abs(change(x)));
    const page = Number(asked.page ?? 0), options = kept.map(({ key, run, step }) => [key, `${runs.length > 1 ? `${run.label}, ` : ""}after step ${step}`]);
    root.append(el("div", { class: "controls" }, choice("a", options, a.key, (value) => set({ a: value, page: 0 }), "left"), choice("b", options, b.key, (value) => set({ b: value, page: 0 }), "right"),
      choice("kind", Object.keys(groups).map((kind) => [kind, `${kind || "all"} (${groups[kind].length})`]), asked.kind, (kind) => set({ kind, page: 0 })),
      el("label", {}, "problem ", el("input", { name: "name", type: "search", value: asked.name ?? "", change: (e) => set({ name: e.target.value, page: 0 }) }))),
    el("p", { class: "soft" }, `${count(both.length, "problem")} in both: ${groups.improved.length} improved, ${groups.regressed.length} regressed, by the kept answers.`),
    ...causesView(groups.regressed),
    pager(page, PER_PAGE, found.length, "problem", (next) => set({ page: next })),
    ...found.slice(page * PER_PAGE, (page + 1) * PER_PAGE).map((row) => comparedAnswers(row, a, b, asked)));
    return redrawing(root, () => viewHeldOut(root, asked));
  }

  function comparedAnswers(row, a, b, asked) {
    const side = (one, held) => el("div", {}, el("h3", {}, `${runs.length > 1 ? `${one.run.label}, ` : ""}after step ${one.step}: ${percent(held.rate)} right`),
      held.answers.map((answer) => el("div", {}, el("div", { class: "label" }, statusOf(answer.status), answer.reason ? ` (${answer.reason})` : "", `, ${count(answer.tokens, "token")}`),
        (answer.parts ?? []).map((part) => partOf(part, answer.extracted)))));
    const made = el("details", { class: "card", open: asked.problem === row.name }, el("summary", {}, el("b", {}, row.name), ` ${percent(row.a.rate)} → ${percent(row.b.rate)} `,
      el("span", { class: "soft" }, row.a.prompt.map(([, , text]) => text).pop()?.slice(-80))));
    const fill = () => {
      if (made.childElementCount > 1) return;
      made.append(el("p", {}, link("held-out", { ...asked, a: a.key, b: b.key, problem: row.name }, "link to this")),
        ...row.a.prompt.map((part) => partOf(part)), el("div", { class: "answers" }, side(a, row.a), side(b, row.b)));
    };
    made.addEventListener("toggle", fill);
    if (made.open) fill();
    return made;
  }

  // ---------- Rollouts

  const statusOf = (status) => el("span", { class: `status ${/^[a-z_]+$/.test(status) ? status : ""}` }, status);
  const flagsOf = (bits) => Object.keys(DATA.flags).filter((name) => bits & DATA.flags[name]);

  function stepRange(asked) {
    const match = /^\s*(\d+)\s*(?:-\s*(\d+))?\s*$/.exec(asked ?? "");
    if (!match) return (asked ?? "").trim() ? null : [-Infinity, Infinity];
    return [Number(match[1]), Number(match[2] ?? match[1])];
  }

  function advantageFits(value, asked) {
    if (!asked) return true;
    if (value === null || asked === "none") return value === null && asked === "none";
    return asked === "0" ? value === 0 : asked === "+" ? value > 0 : value < 0;
  }

  // What makes a rollout worth a look: its flags and, among equals, its length.
  function interests({ flags, tokens }) {
    const longest = tokens.reduce((a, b) => Math.max(a, b ?? 0), 1), known = new Map();
    const weigh = (bits) => known.get(bits) ?? known.set(bits, flagsOf(bits).reduce((sum, name) => sum + (INTEREST[name] ?? 0), 0)).get(bits);
    return flags.map((bits, row) => weigh(bits) + (tokens[row] ?? 0) / longest);
  }

  // By what rollouts are sorted, largest first; among equals the last step, or as they were logged.
  const SORTS = {
    interest: ["most interesting", interests, true], logged: ["as logged", null], last: ["last step first", ({ step }) => step],
    high: ["highest advantage", ({ advantage }) => advantage.map((value) => value ?? -Infinity)],
    low: ["lowest advantage", ({ advantage }) => advantage.map((value) => value === null ? -Infinity : -value)],
    longest: ["longest", ({ tokens }) => tokens.map((value) => value ?? 0)],
  };

  // Compares rows by an order, whose keys are made once.
  function comparing(run, name) {
    const [, keysOf, lastFirst] = SORTS[Object.hasOwn(SORTS, name) ? name : "interest"], { step } = run.index;
    if (!keysOf) return (a, b) => a - b;
    if (!run.keys.has(name)) run.keys.set(name, keysOf(run.index));
    const keys = run.keys.get(name);
    return (a, b) => keys[b] - keys[a] || (lastFirst ? step[b] - step[a] : a - b);
  }

  // The first rows by an order. Few of many are found without sorting all.
  function firstOf(rows, compare, size) {
    if (size > 10 * PER_PAGE) return rows.sort(compare).slice(0, size);
    const first = [];
    for (const row of rows) {
      if (first.length === size && compare(row, first[size - 1]) > 0) continue;
      const at = first.findIndex((one) => compare(row, one) < 0);
      first.splice(at < 0 ? first.length : at, 0, row);
      if (first.length > size) first.pop();
    }
    return first;
  }

  function filterRows(run, asked, withText) {
    const index = run.index, range = stepRange(asked.step), found = [];
    if (range === null) return found;
    const name = (asked.problem ?? "").toLowerCase(), exact = index.problems.includes(asked.problem);
    const names = index.problems.map((own) => exact ? own === asked.problem : own.toLowerCase().includes(name));
    const status = asked.status ? index.statuses.indexOf(asked.status) : -1, flag = DATA.flags[asked.flag] ?? 0, all = range[0] === -Infinity;
    for (let row = 0; row < index.count; row += 1) {
      if ((all || (index.step[row] >= range[0] && index.step[row] <= range[1])) && names[index.problem[row]]
        && (!asked.status || index.status[row] === status) && (!flag || index.flags[row] & flag)
        && advantageFits(index.advantage[row], asked.advantage) && (!withText || withText[row])) found.push(row);
    }
    return found;
  }

  function filterForm(run, asked, set) {
    const counts = new Map();
    for (const status of run.index.status) counts.set(status, (counts.get(status) ?? 0) + 1);
    const input = (name, label, hint, more) => el("label", {}, `${label} `, el("input", { name, placeholder: hint, size: 14, value: asked[name] ?? "",
      input: () => set(values()), ...more }));
    const pick = (name, label, options) => choice(name, options, asked[name], () => set(values()), label);
    const form = el("form", { class: "controls", submit: (event) => event.preventDefault() }, runPicker("rollouts", asked),
      input("step", "step", "all, or 3, or 10-20", { inputmode: "numeric", class: stepRange(asked.step) ? null : "wrong" }),
      input("problem", "problem", "part of an id"),
      pick("status", "verdict", [["", "all"], ...run.index.statuses.map((name, i) => [name, `${name} (${(counts.get(i) ?? 0).toLocaleString("en")})`])]),
      pick("advantage", "advantage", [["", "any"], ["+", "above 0"], ["-", "below 0"], ["0", "0"], ["none", "none: not trained on"]]),
      pick("flag", "what", [["", "anything"], ...Object.entries(FLAG_WORDS)]),
      pick("order", "order", Object.entries(SORTS).map(([name, [words]]) => [name, words])), input("text", "text", "in prompt or completion", { type: "search", size: 20 }));
    const values = () => Object.fromEntries(new FormData(form));
    return form;
  }

  async function viewRollouts(root, asked) {
    const run = runOf(asked);
    if (asked.sample !== undefined) return viewGroup(root, run, asked);
    const place = el("div", {});
    const set = (values) => { Object.assign(asked, values, { page: 0 }); replace("rollouts", asked); return list(); };
    let changes = 0, busy = false;
    // Shows the list that is asked for, one at a time: what is asked for meanwhile comes next, without what came between.
    const list = async () => {
      changes += 1;
      if (busy) return;
      busy = true;
      try {
        for (let shown = 0; shown !== changes;) {
          await new Promise((resolve) => { setTimeout(resolve); });
          shown = changes;
          const begun = performance.now(), found = asked.text ? rowsWithText(run, asked.text) : [{ found: null, whole: true }];
          for await (const part of found) {
            if (!await paint(part, () => shown !== changes)) break;
            root.dataset[part.whole ? "whole" : "first"] = Math.round(performance.now() - begun);
          }
        }
      } finally { busy = false; }
    };
    const paint = async ({ found, whole }, isOld) => {
      const rows = filterRows(run, asked, found), total = rows.length, page = Number(asked.page ?? 0);
      const part = firstOf(rows, comparing(run, asked.order), (page + 1) * PER_PAGE).slice(page * PER_PAGE);
      const texts = await textsOf(run, part);
      if (isOld()) return false;
      const problem = run.index.problems.includes(asked.problem) && describeHistory(run, asked.problem);
      place.replaceChildren(...[problem, pager(page, PER_PAGE, total, whole ? "rollout" : "rollout so far", (next) => { asked.page = next; replace("rollouts", asked); list(); }),
        el("div", { class: "cards" }, part.map((row, i) => card(run, row, texts[i])))].filter(Boolean));
      if (asked.tint) tint(root, asked.tint);
      return true;
    };
    root.append(filterForm(run, asked, set), el("p", { class: "soft" }, run.note), el("p", { class: "soft scale" }), place);
    root.querySelector("form").append(tintPicker(root, asked));
    await list();
    const news = el("button", { type: "button", hidden: true, click: () => { news.hidden = true; list(); } }, "new rollouts: show them");
    root.prepend(news);
    return () => { news.hidden = false; };
  }

  function describeHistory(run, name) {
    const found = histories(run).find((problem) => problem.name === name);
    return el("div", { class: "history" }, el("b", {}, `${name}: ${found.kind}`), found.visits.map((visit) =>
      link("rollouts", { run: run.label, step: visit.step, problem: name, sample: "" }, `step ${visit.step}: ${visit.right}/${visit.count}`)));
  }

  async function viewGroup(root, run, asked) {
    const index = run.index, step = Number(asked.step), place = index.problems.indexOf(asked.problem), rows = [], groups = [];
    for (let row = 0; row < index.count; row += 1) {
      if (index.step[row] === step && index.problem[row] === place) rows.push(row);
      if (!row || index.step[row] !== index.step[row - 1] || index.problem[row] !== index.problem[row - 1]) groups.push(row);
    }
    if (!rows.length) {
      root.append(el("p", {}, `There are no rollouts of problem ${asked.problem} at step ${asked.step}.`));
      return;
    }
    const right = rows.filter((row) => index.status[row] === index.right).length, mean = rows.reduce((sum, row) => sum + (index.reward[row] ?? 0), 0) / rows.length;
    const here = groups.indexOf(rows[0]), texts = await textsOf(run, rows.sort(comparing(run, "interest"))), [packed] = texts;
    const cards = rows.map((row, i) => card(run, row, texts[i], { group: true, chosen: String(index.sample[row]) === asked.sample }));
    const turn = (by) => {
      const row = groups[here + by];
      if (row !== undefined) go("rollouts", { run: run.label, step: index.step[row], problem: index.problems[index.problem[row]], sample: "", tint: asked.tint });
    };
    root.append(
      el("div", { class: "controls" }, el("button", { type: "button", name: "back", title: "key k", disabled: here < 1, click: () => turn(-1) }, "← group before"),
        el("button", { type: "button", name: "next", title: "key j", disabled: here + 1 >= groups.length, click: () => turn(1) }, "next group →"),
        link("rollouts", { run: run.label, problem: asked.problem }, "all of this problem"), link("rollouts", { run: run.label, step }, "all of this step"),
        tintPicker(root, asked)), el("p", { class: "soft scale" }),
      el("h2", {}, `${runs.length > 1 ? `${run.label}, ` : ""}step ${step}, ${asked.problem}`),
      el("p", {}, `${right} of ${rows.length} right, mean reward ${number(mean)}.`), describeHistory(run, asked.problem),
      ...(packed ? promptOf(packed).map((part) => partOf(part)) : []), el("div", { class: "cards side" }, cards));
    if (asked.tint) tint(root, asked.tint);
    root.querySelector(".card.chosen")?.scrollIntoView({ block: "start" });
  }

  const promptOf = (packed) => packed[2].slice(0, promptLength(packed));
  function promptLength([, , parts]) {
    const first = parts.findIndex(([role]) => role === "completion" || role === "assistant");
    return parts.some(([role]) => role === "completion") ? parts.findIndex(([role]) => role === "completion") : Math.max(first, 0);
  }

  // Marks the last place where a text has the answer that the verifier extracted.
  function marked(text, extracted) {
    const place = extracted ? text.lastIndexOf(extracted) : -1;
    return place < 0 ? [text] : [text.slice(0, place), el("mark", { title: "extracted answer" }, extracted), text.slice(place + extracted.length)];
  }

  function partOf([role, facts, text, kind, advantage, tokens], extracted) {
    const label = `${role}${facts ? `, ${facts}` : ""}${typeof advantage === "number" ? `, advantage ${signed(advantage)}` : ""}`;
    const shownText = el("pre", { class: (kind & 1 ? "masked" : "own") + (kind & 2 ? " void" : "") }, marked(text, extracted));
    if (typeof advantage === "number") shownText.dataset.advantage = advantage;
    if (tokens || typeof advantage === "number") OWN.set(shownText, { text, extracted, advantage, tokens });
    const folded = role !== "assistant" && role !== "completion" && text.length > 200;
    if (!folded) return el("div", {}, el("div", { class: "label" }, label), shownText);
    return el("details", { class: "turn" }, el("summary", { class: "label" }, `${label}: ${text.slice(0, 80).replace(/\s+/g, " ")}…`), shownText);
  }

  // What a rollout's tokens can be coloured by: words, the unit in which they are logged, the least end of the scale.
  const TINTS = { advantage: ["advantage", 1, 1e-9, ""], difference: ["trainer less sampler", 1000, 0.01, " nats"], entropy: ["entropy", 1000, 0.1, " nats"] };
  const OWN = new WeakMap();  // of the element of a part: text, extracted answer, advantage, values of its tokens

  const valueOf = (tokens, kind, i) => tokens[kind]?.[i] === undefined || tokens[kind][i] === null ? null : tokens[kind][i] / TINTS[kind][1];

  function tint(root, kind) {
    const parts = [...root.querySelectorAll("pre")].filter((part) => OWN.has(part)), [words, unit, least, nats] = TINTS[kind] ?? [];
    const all = parts.map((part) => OWN.get(part)).flatMap(({ tokens, advantage }) =>
      tokens?.[kind]?.map((value) => (value ?? 0) / unit) ?? (kind === "advantage" && typeof advantage === "number" ? [advantage] : []));
    const largest = all.reduce((a, b) => Math.max(a, Math.abs(b)), least ?? 0);
    const back = (value) => value === null ? "" : `rgba(${color(value < 0 ? "--low" : "--high")}, ${Math.abs(value) / largest * 0.6})`;
    for (const part of parts) {
      const own = OWN.get(part), byToken = own.tokens?.[kind];
      part.style.background = kind === "advantage" && !byToken && typeof own.advantage === "number" ? back(own.advantage) : "";
      part.replaceChildren(...(byToken ? tokenSpans(own, kind, back) : marked(own.text, own.extracted)).map((piece) => piece instanceof Node ? piece : shown(piece)));
    }
    const scale = root.querySelector(".scale");
    if (!scale) return;
    scale.replaceChildren(...(!words ? [] : all.length ? [`${words}: no colour is 0, full blue ${number(largest, 2)}${nats}${kind === "entropy" ? "" : `, full orange −${number(largest, 2)}${nats}`}.`]
      : ["None of these rollouts has values of its tokens. The run keeps them for the first rollouts of each step: ",
        link("rollouts", { flag: "values", tint: kind }, "those that have them"), "."]));
  }

  // Text as one element a token. Lengths count characters as Python does, not UTF-16 units.
  function tokenSpans({ text, extracted, tokens }, kind, back) {
    const letters = Array.from(text), at = extracted ? text.lastIndexOf(extracted) : -1;
    const from = at < 0 ? Infinity : Array.from(text.slice(0, at)).length, to = from + Array.from(extracted ?? "").length;
    let place = 0;
    const made = tokens.lengths.map((length, i) => {
      const value = valueOf(tokens, kind, i), begin = place;
      place += length;
      const said = Object.keys(TINTS).map((name) => [name, valueOf(tokens, name, i)]).filter(([, held]) => held !== null);
      const piece = el("span", { class: begin < to && place > from ? "answer" : null,
        title: said.map(([name, held]) => `${TINTS[name][0]} ${number(held, 2)}`).join(", ") }, letters.slice(begin, place).join(""));
      piece.style.background = back(value);
      return piece;
    });
    return [...made, letters.slice(place).join("")];
  }

  function tintPicker(root, asked) {
    const options = [["", "nothing"], ...Object.entries(TINTS).map(([kind, [words]]) => [kind, words])];
    return choice("tint", options, asked.tint, (kind) => { asked.tint = kind; replace("rollouts", asked); tint(root, kind); }, "colour by");
  }

  function card(run, row, packed, { group = false, chosen = false } = {}) {
    const index = run.index, status = index.statuses[index.status[row]], problem = index.problems[index.problem[row]];
    const here = { run: run.label, step: index.step[row], problem, sample: index.sample[row] };
    const words = packed ? (packed[0].startsWith(status) ? packed[0].slice(status.length) : ` ${packed[0]}`) :
      `, reward ${signed(index.reward[row])}, advantage ${signed(index.advantage[row])}`;
    const made = el("article", { class: `card rollout${chosen ? " chosen" : ""}` }, el("h3", {}, link("rollouts", here,
      group ? `sample ${index.sample[row]}` : `step ${index.step[row]}, ${problem}, sample ${index.sample[row]}`), ": ", statusOf(status), words,
    flagsOf(index.flags[row]).filter((name) => name !== "values").map((name) => el("span", { class: "flag" }, FLAG_WORDS[name]))));
    if (!packed) {
      made.append(el("p", { class: "soft" }, "Its text is not in this page: `rlvr view` shows it."));
      return made;
    }
    const [, extracted, parts] = packed, prompt = promptLength(packed), last = parts.map(([role]) => role).lastIndexOf("assistant");
    const own = parts.slice(group ? prompt : 0).map((part, i, all) => partOf(part.length < 5 || part[4] === null ?
      [...part.slice(0, 4), ["assistant", "completion"].includes(part[0]) ? index.advantage[row] : null, part[5]] : part,
    last < 0 || i === all.length - (parts.length - last) || part[0] === "completion" ? extracted : null));
    if (extracted && !parts.some(([, , text]) => text.includes(extracted))) made.append(el("p", { class: "soft" }, `extracted answer: ${extracted}`));
    if (group && flagsOf(index.flags[row]).includes("same")) made.append(details("same text as another sample", own)); else made.append(...own);
    if (packed[2].every(([, , text]) => !/\[\.\.\. [\d,]+ characters left out \.\.\.\]/.test(text))) {
      made.append(el("button", { type: "button", name: "copy", click: (event) => copy(gradeLine(problem, packed), event.target) }, "copy for rlvr grade"));
    }
    return made;
  }

  // A line of the file that `rlvr grade` reads. It lacks the reference, which a run does not log.
  function gradeLine(problem, packed) {
    const parts = packed[2], prompt = parts.slice(0, promptLength(packed)), said = parts.filter(([role]) => role === "assistant" || role === "completion");
    const asked = prompt.length === 1 && prompt[0][0] === "prompt" ? prompt[0][2] : prompt.map(([role, , content]) => ({ role, content }));
    return JSON.stringify({ id: problem, prompt: asked, completion: said[said.length - 1]?.[2] ?? "" });
  }

  // ---------- The page: tabs, links, keys, news

  const ALL = { overview: viewOverview, curves: viewCurves, problems: viewProblems, "held-out": viewHeldOut, rollouts: viewRollouts, settings: viewSettings };
  const VIEWS = Object.fromEntries((DATA.views ?? Object.keys(ALL)).map((name) => [name, ALL[name]]));
  const place = document.getElementById("page"), main = el("main", {}), nav = el("nav", { "aria-label": "views" });
  const hashOf = (view, values) => `#${view}?${new URLSearchParams(Object.entries(values).filter(([, v]) => v !== undefined && v !== null))}`;
  const runOf = (asked) => runs.find((run) => run.label === asked.run) ?? runs[0];
  const link = (view, values, text) => el("a", { href: hashOf(view, values) }, text);
  let update = null, shownHash = null, drawn = null;

  function go(view, values) { location.hash = hashOf(view, values); }
  function replace(view, values) { history.replaceState(null, "", location.search + hashOf(view, values)); shownHash = location.hash; }

  function choice(name, options, value, action, label = name) {
    const made = el("select", { name, change: (event) => action(event.target.value) }, options.map(([key, text]) => el("option", { value: key, selected: key === (value ?? "") }, text)));
    return el("label", {}, `${label} `, made);
  }

  function runPicker(view, asked) {
    return runs.length > 1 && choice("run", runs.map((run) => [run.label, run.label]), runOf(asked).label, (run) => go(view, { ...asked, run }));
  }

  function pager(page, size, total, thing, turn) {
    const from = page * size, to = Math.min(from + size, total);
    return el("p", { class: "pages" }, el("button", { type: "button", name: "back", "aria-label": "earlier", disabled: !page, click: () => turn(page - 1) }, "←"), " ",
      el("output", {}, `${total ? `${from + 1} to ${to} of ` : ""}${count(total, thing)}`), " ",
      el("button", { type: "button", name: "next", "aria-label": "later", disabled: to >= total, click: () => turn(page + 1) }, "→"));
  }

  // Which runs and curves there are: where others come, a view is drawn anew as a whole.
  const shape = () => JSON.stringify([runs.length, Object.keys(DATA.panels).map((group) => panelsOf(group).map((panel) => panel.title))]);

  async function renderAgain() {
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    const open = opened(main), top = window.scrollY;
    shownHash = null;
    await render();
    reopen(main, open);
    window.scrollTo(0, top);
  }

  async function render() {
    if (location.hash === shownHash && update) return;
    [shownHash, drawn] = [location.hash, shape()];
    const [name, query] = location.hash.slice(1).split("?"), view = Object.hasOwn(VIEWS, name) ? name : Object.keys(VIEWS)[0];
    if (!DATA.views) nav.replaceChildren(...Object.keys(VIEWS).map((one, i) => el("a", { href: `#${one}`, "aria-current": one === view ? "page" : null, title: `key ${i + 1}` }, one)));
    for (const held of curves.charts) held.chart?.destroy();
    curves.charts.clear();
    const root = el("section", { id: `view-${view}` });  // not the hash, to which the browser would scroll
    const turn = render.turn = {};
    main.replaceChildren(root);
    window.scrollTo(0, 0);
    const found = await VIEWS[view](root, Object.fromEntries(new URLSearchParams(query)));
    if (render.turn !== turn) return;
    update = found ?? (() => {});
    document.body.dataset.view = view;
    document.body.dataset.shown = location.hash;
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const views = Object.keys(VIEWS), press = { j: "next", k: "back" }[event.key];
    if (views[Number(event.key) - 1] && !event.target.classList?.contains("plot")) go(views[Number(event.key) - 1], {});
    else if (press) main.querySelector(`[name=${press}]`)?.click();
    else if (event.key === "/") {
      event.preventDefault();
      main.querySelector("[type=search]")?.focus();
    }
  }

  async function follow() {
    try {
      const have = runs.map((run) => [run.generation, run.rows]), contents = await ask("runs", { have: JSON.stringify(have) });
      const news = contents.map((content, i) => content.generation !== have[i]?.[0] || (content.metrics.step?.length ?? 0) > 0
        || content.head.state !== runs[i]?.head.state || content.answers.length !== runs[i]?.answers.length);
      contents.forEach(merge);
      state.textContent = "";
      const more = await Promise.all(runs.map(readRollouts));
      if ([...news, ...more].some(Boolean)) update?.();
      if (shape() !== drawn) await renderAgain();
      document.body.dataset.steps = Math.max(...runs.map((run) => run.rows));
    } catch (error) {
      state.textContent = `No news: ${error.message}. Has rlvr view ended?`;
    }
    setTimeout(follow, POLL);
  }

  const state = el("span", { class: "soft" });
  async function begin() {
    place.append(el(DATA.views ? "h2" : "h1", {}, DATA.views ? "Curves" : document.title.replace(/^rlvr: /, "")), state, DATA.views ? "" : nav, main);
    if (DATA.live) {
      (await ask("runs", { have: "[]" })).forEach(merge);
    } else {
      DATA.runs.forEach(merge);
    }
    window.addEventListener("hashchange", render);
    document.addEventListener("keydown", onKey);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const view of curves.charts) if (view.chart) view.draw(); });
    const early = /^#(overview|settings)?(\?|$)/.test(location.hash);
    if (early) await render();
    document.body.dataset.painted = Math.round(performance.now());
    await Promise.all(runs.map(readRollouts));
    if (early) update(); else await render();
    drawn = shape();
    document.body.dataset.ready = Math.round(performance.now());
    if (DATA.live) setTimeout(follow, POLL);
    else readAhead();
  }

  begin();
})();
