// The large chart and the small ones in the table, as hand-written SVG: stacked areas, so that the height is the rate
// of all requests and the red part that of the denied ones. The style sheet has the colours.

import { clock, rate } from "./summary.js";

const SVG = "http://www.w3.org/2000/svg";
/** From the bottom up. */
const LAYERS = ["admitted", "denied", "unavailable"];
const [LEFT, RIGHT, TOP, BOTTOM] = [44, 8, 14, 22];
/** Steps of the time axis. */
const STEPS_MS = [10_000, 15_000, 30_000, 60_000, 120_000];
/** Room of a flag, pixels. */
const FLAG = 10;
/** Width of a time label under the axis, pixels. */
const LABEL = 62;

function make(parent, name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return parent.appendChild(element);
}

/** The outline of one layer of all runs. */
function area(runs, layer, x, y) {
  const below = (point) => LAYERS.slice(0, layer).reduce((sum, name) => sum + point[name], 0);
  let path = "";
  for (const run of runs) {
    if (!run.some((point) => point[LAYERS[layer]] > 0)) continue;
    const up = run.map((point) => `${x(point.at)},${y(below(point) + point[LAYERS[layer]])}`);
    const back = run.map((point) => `${x(point.at)},${y(below(point))}`).reverse();
    path += `M${up.join("L")}L${back.join("L")}Z`;
  }
  return path;
}

/** The smallest of 1, 2, 5, 10, 20 ... that is not below a value. */
function round_up(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value * 0.999) * power;
}

const highest = (runs) => Math.max(0, ...runs.flat().map((point) => LAYERS.reduce((sum, name) => sum + point[name], 0)));

/** One path for each layer. */
function layers(parent) {
  return LAYERS.map((name) => make(parent, "path", { class: `layer ${name}` }));
}

function fill(paths, runs, x, y) {
  paths.forEach((path, layer) => path.setAttribute("d", area(runs, layer, x, y)));
}

/** The large chart in `container`; `readout` shows the values under the pointer. */
export class Chart {
  #drawn;
  #size = { width: 0, height: 0 };

  constructor(container, readout) {
    this.readout = readout;
    this.svg = make(container, "svg", { "aria-hidden": "true" });
    this.grid = make(this.svg, "g", { class: "grid" });
    this.paths = layers(make(this.svg, "g"));
    this.marks = make(this.svg, "g", { class: "marks" });
    this.cross = make(this.svg, "line", { class: "cross", visibility: "hidden" });
    new ResizeObserver(([{ contentRect }]) => {
      this.#size = { width: contentRect.width, height: contentRect.height };
      this.svg.setAttribute("viewBox", `0 0 ${contentRect.width} ${contentRect.height}`);
      if (this.#drawn) this.draw(this.#drawn);
    }).observe(container);
    container.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    container.addEventListener("pointerleave", () => this.#point(undefined));
  }

  /** `what`: `{ runs, now, span, marks: [{ at, tone, label }] }`; times in milliseconds, `span` up to now. */
  draw(what) {
    this.#drawn = what;
    const { width, height } = this.#size;
    if (width === 0) return;
    const ceiling = round_up(Math.max(1, highest(what.runs)));
    this.x = (at) => Math.round((LEFT + (width - LEFT - RIGHT) * Math.max(0, 1 - (what.now - at) / what.span)) * 10) / 10;
    const y = (value) => Math.round((height - BOTTOM - (height - TOP - BOTTOM) * (value / ceiling)) * 10) / 10;
    this.#frame(what, ceiling, y);
    fill(this.paths, what.runs, this.x, y);
    this.marks.replaceChildren();
    const shown = what.marks.filter(({ at }) => at >= what.now - what.span).sort((a, b) => a.at - b.at);
    // Those that would overlap have one flag, with the labels of all and the tone of the worst.
    const groups = [];
    for (const { at, tone, label } of shown) {
      const last = groups.at(-1);
      if (last && this.x(at) - last.x < FLAG) {
        last.label += `\n${label}`;
        if (tone === "us" || last.tone === "wait") last.tone = tone;
      } else groups.push({ x: this.x(at), tone, label });
    }
    for (const { x, tone, label } of groups) {
      const mark = make(this.marks, "path", { d: `M${x},${TOP}V${height - BOTTOM}`, "data-tone": tone });
      make(mark, "title").textContent = label;
      make(this.marks, "path", { d: `M${x - FLAG / 2 + 1},${TOP - 8}h${FLAG - 2}l${1 - FLAG / 2},8z`, "data-tone": tone, class: "flag" });
    }
  }

  #frame({ now, span }, ceiling, y) {
    const { width, height } = this.#size;
    this.grid.replaceChildren();
    for (const value of [0, ceiling / 2, ceiling]) {
      make(this.grid, "path", { d: `M${LEFT},${y(value)}H${width - RIGHT}` });
      make(this.grid, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }).textContent = rate(value);
    }
    const room = (width - LEFT - RIGHT) / LABEL;
    const every = STEPS_MS.find((step) => span / step <= room) ?? STEPS_MS.at(-1);
    for (let at = Math.ceil((now - span) / every) * every; at <= now; at += every) {
      const x = this.x(at);
      make(this.grid, "path", { d: `M${x},${height - BOTTOM}v4` });
      // It would overlap the value axis, or be cut off.
      if (x < LEFT + LABEL / 2 || x > width - LABEL / 2) continue;
      const time = clock(at, at);
      make(this.grid, "text", { x, y: height - 5, "text-anchor": "middle" }).textContent = every < 60_000 ? time : time.slice(0, 5);
    }
  }

  #point(x) {
    const points = this.#drawn?.runs.flat() ?? [];
    const near = x === undefined || points.length === 0 ? undefined
      : points.reduce((best, point) => (Math.abs(this.x(point.at) - x) < Math.abs(this.x(best.at) - x) ? point : best));
    this.cross.setAttribute("visibility", near ? "visible" : "hidden");
    this.readout.textContent = near
      ? `${clock(near.at, this.#drawn.now)}: ${rate(near.admitted)} admitted, ${rate(near.denied)} 429s, ${rate(near.unavailable)} undecided per second`
      : "";
    if (!near) return;
    const at = this.x(near.at);
    for (const [name, value] of [["x1", at], ["x2", at], ["y1", TOP], ["y2", this.#size.height - BOTTOM]]) {
      this.cross.setAttribute(name, value);
    }
  }
}

/** A small chart for a row of a table; its numbers are in the next cells. */
export class Spark {
  constructor(container) {
    this.paths = layers(make(container, "svg", { viewBox: "0 0 120 28", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" }));
    this.empty = true;
  }

  draw(runs, now, span) {
    // Most of thousands of limits have no chart.
    if (runs.length === 0 && this.empty) return;
    this.empty = runs.length === 0;
    const ceiling = Math.max(1, highest(runs));
    fill(
      this.paths, runs,
      (at) => Math.round(120 * Math.max(0, 1 - (now - at) / span) * 10) / 10,
      (value) => Math.round((27 - 26 * (value / ceiling)) * 10) / 10,
    );
  }
}
