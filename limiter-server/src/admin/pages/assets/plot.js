// Draws the decisions of a policy over some hours, with a mark for each edit.
//
// <figure data-plot data-source="/admin/v1/…/usage" data-hours="24" data-span="minute"
//         data-explain="/e/…/explain?…" data-end="0"
//         data-marks='[{"at":…,"revision":3,"href":"…"}]'><div class="plot-canvas"></div>…</figure>
//
// The end is in seconds; 0 for a plot that ends now.
// Points come from the route of the API. Minutes before the first decision are not known and stay
// empty; later minutes without a decision are zero. A click on the plot leads to the explanation
// of that minute, a click on a mark to its revision. A drag selects a part of the range, which the
// URL keeps as `from` and `to` in seconds; a double click shows the whole range again.

const STEPS = { minute: 60, hour: 3600 };
const INTERVAL = 5_000;
const STALE_AFTER = 30_000;
/** In pixels, as in style.css. */
const LEGEND_HEIGHT = 48;
/** The shortest drag in pixels; a shorter movement is a part of a click. */
const DRAG_DISTANCE = 4;
/** The time between the clicks of a double click. */
const DOUBLE_CLICK = 400;

const SERIES = [
  { name: "allowed", label: "Allowed", colour: "--ok" },
  { name: "denied", label: "Denied", colour: "--bad" },
  { name: "would_deny", label: "Would deny", colour: "--accent" },
  // Red as well: a call without a decision. The dashes distinguish it from denials.
  { name: "failed", label: "Failed", colour: "--bad", dash: [4, 3] },
];

const zoneName = () => {
  const parts = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" }).formatToParts(new Date());
  return parts.find((part) => part.type === "timeZoneName").value;
};

/** The part of the range in the URL; null for the whole one. */
function zoomOfUrl() {
  const query = new URLSearchParams(location.search);
  const [min, max] = ["from", "to"].map((name) => Number(query.get(name) ?? NaN));
  return min < max ? { min, max } : null;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#808080";

class Plot {
  constructor(figure) {
    this.figure = figure;
    this.canvas = figure.querySelector(".plot-canvas");
    this.hours = Number(figure.dataset.hours || 24);
    this.span = figure.dataset.span || "minute";
    this.step = STEPS[this.span];
    /** The fixed end in seconds; 0 for a plot that ends now. */
    this.end = Number(figure.dataset.end || 0);
    const isShown = (mark) => this.end === 0 || mark.at / 1e6 <= this.end;
    this.marks = JSON.parse(figure.dataset.marks || "[]").filter(isShown);
    this.points = new Map();
    this.readAt = 0;
    this.tag = null;
    this.zoom = zoomOfUrl();
    /** True after the end of a drag, until the mouse is pressed again. */
    this.isSelected = false;
    /** The timer of a click that may be the first one of a double click. */
    this.clickTimer = 0;
  }

  /** The start of the minute or hour that contains a time. */
  startOf(at) {
    return at - (at % this.step);
  }

  /** Reads the newest points. Fails if the answer is incomplete. */
  async read() {
    const newest = Math.max(0, ...this.points.keys());
    const end = this.end || Math.floor(Date.now() / 1_000);
    // The newest minute or hour is counted further.
    const from = newest ? newest - this.step : this.startOf(end - this.hours * 3600);
    const to = this.end ? `&to=${this.end * 1e6}` : "";
    const headers = { accept: "application/json" };
    if (this.tag !== null) headers["if-none-match"] = this.tag;
    const options = { headers, signal: AbortSignal.timeout(STALE_AFTER), cache: "no-store" };
    const source = `${this.figure.dataset.source}?span=${this.span}&from=${from * 1e6}${to}`;
    const answer = await fetch(source, options);
    if (answer.status === 304) {
      this.now = this.end || Math.floor(Date.parse(answer.headers.get("date")) / 1_000);
      this.readAt = Date.now();
      return;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const usage = await answer.json();
    // A tag without the points of its answer would confirm a plot without them.
    this.tag = answer.headers.get("etag");
    this.now = this.end || Math.floor(usage.now / 1e6);
    for (const point of usage.points) this.points.set(Math.floor(point.at / 1e6), point);
    const oldest = this.startOf(this.now - this.hours * 3600);
    for (const at of this.points.keys()) if (at < oldest) this.points.delete(at);
    this.readAt = Date.now();
  }

  data() {
    const end = this.startOf(this.now);
    const start = this.startOf(this.now - this.hours * 3600);
    const first = Math.min(...this.points.keys(), end);
    const times = [];
    for (let at = start; at <= end; at += this.step) times.push(at);
    // Without a failed call, a second red line at zero would be mistaken for denials.
    const hasFailed = [...this.points.values()].some((point) => point.failed > 0);
    const isAbsent = (at, name) => at < first || (name === "failed" && !hasFailed);
    const count = (at, name) => (isAbsent(at, name) ? null : (this.points.get(at)?.[name] ?? 0));
    // The last minute or hour is not over: its counts so far are points, not a part of the line.
    const isOver = (at) => at !== end || this.end > 0;
    const lines = SERIES.map(({ name }) => times.map((at) => (isOver(at) ? count(at, name) : null)));
    const soFar = SERIES.map(({ name }) => times.map((at) => (isOver(at) ? null : count(at, name))));
    return [times, ...lines, ...soFar];
  }

  draw() {
    const data = this.data();
    if (this.uplot) {
      this.uplot.setData(data, this.zoom === null);
      if (this.zoom !== null) this.uplot.setScale("x", this.zoom);
      return;
    }
    const text = colour("--muted");
    const grid = { stroke: colour("--line"), width: 1 };
    const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    const days = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
    const tick = (at) => {
      const time = new Date(at * 1_000);
      const isMidnight = time.getHours() === 0 && time.getMinutes() === 0;
      return isMidnight ? `00:00\n${days.format(time)}` : minutes.format(time);
    };
    const axis = { stroke: text, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const options = {
      width: this.canvas.clientWidth,
      height: this.canvas.clientHeight - LEGEND_HEIGHT,
      // uPlot moves the end of a press in the first or last pixel to the edge, and would discard
      // the click as a drag. The newest mark is there. `click` discards clicks of selections.
      cursor: { drag: { x: true, y: false, dist: DRAG_DISTANCE, click: () => {} }, points: { size: 6 } },
      legend: { live: true },
      scales: { y: { range: (_, __, highest) => [0, Math.max(5, highest * 1.1)] } },
      axes: [
        { ...axis, values: (_, splits) => splits.map(tick), label: `Time in ${zoneName()}`, labelFont: axis.font, labelSize: 18 },
        { ...axis, size: 48 },
      ],
      series: [
        { label: "Time", value: (_, at) => (at === null ? "--" : minutes.format(new Date(at * 1_000))) },
        ...SERIES.map(({ label, colour: name, dash }) => ({
          label,
          stroke: colour(name),
          width: 1.5,
          dash,
          points: { show: false },
        })),
        ...SERIES.map(({ label, colour: name }) => ({
          label: `${label} so far`,
          stroke: colour(name),
          width: 0,
          points: { show: true, size: 6, fill: colour(name) },
        })),
      ],
      hooks: { draw: [(plot) => this.drawMarks(plot)], setSelect: [(plot) => this.select(plot)] },
    };
    this.uplot = new globalThis.uPlot(options, data, this.canvas);
    const surface = this.uplot.over;
    surface.addEventListener("mousedown", () => (this.isSelected = false));
    surface.addEventListener("click", (event) => this.click(event));
    surface.addEventListener("dblclick", () => this.showAll());
    if (this.zoom !== null) this.uplot.setScale("x", this.zoom);
  }

  /** The time at which a mark is drawn: an edit of the minute that is not over at its start. */
  timeOf(mark) {
    return Math.min(mark.at / 1e6, this.startOf(this.now));
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const ratio = globalThis.devicePixelRatio || 1;
    ctx.save();
    ctx.strokeStyle = colour("--accent");
    ctx.fillStyle = colour("--accent");
    ctx.lineWidth = ratio;
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    for (const mark of this.marks) {
      const x = Math.round(plot.valToPos(this.timeOf(mark), "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(String(mark.revision), x + 3 * ratio, bbox.top + 12 * ratio);
    }
    ctx.restore();
  }

  /** Keeps the selected part in the URL, so that a reload and a link show it. */
  select(plot) {
    this.isSelected = true;
    const { left, width } = plot.select;
    const [min, max] = [left, left + width].map((x) => Math.round(plot.posToVal(x, "x")));
    if (width <= 0 || min >= max) return;
    this.keepZoom({ min, max });
  }

  /** Shows the whole range, as uPlot does at a double click. */
  showAll() {
    if (this.zoom !== null) this.keepZoom(null);
  }

  keepZoom(zoom) {
    this.zoom = zoom;
    const url = new URL(location.href);
    for (const [name, end] of [["from", "min"], ["to", "max"]]) {
      if (zoom === null) url.searchParams.delete(name);
      else url.searchParams.set(name, zoom[end]);
    }
    history.replaceState(null, "", url);
  }

  // A part of the range can be left by a double click, whose first click must not lead away.
  click(event) {
    clearTimeout(this.clickTimer);
    if (this.isSelected || event.detail > 1) return;
    const href = this.hrefAt(event.offsetX);
    if (href === null) return;
    const delay = this.zoom === null ? 0 : DOUBLE_CLICK;
    this.clickTimer = setTimeout(() => (location.href = href), delay);
  }

  /** The page of a mark near a position, or else the explanation of its minute. */
  hrefAt(x) {
    const plot = this.uplot;
    const near = this.marks.find((mark) => Math.abs(plot.valToPos(this.timeOf(mark), "x") - x) < 6);
    if (near) return near.href;
    const at = Math.round(plot.posToVal(x, "x")) * 1e6;
    return this.figure.dataset.explain ? `${this.figure.dataset.explain}&at=${at}` : null;
  }

  redraw() {
    this.uplot?.destroy();
    this.uplot = null;
    if (this.readAt) this.draw();
  }

  async pass() {
    if (!document.hidden) {
      try {
        await this.read();
        this.draw();
        this.figure.dataset.drawn = String(this.readAt);
        for (const { name } of SERIES) {
          const counts = [...this.points.values()].map((point) => point[name]);
          this.figure.dataset[name] = String(counts.reduce((sum, count) => sum + count, 0));
        }
      } catch {
        // The server does not answer; the plot grows old.
      }
    }
    setTimeout(() => this.pass(), INTERVAL);
  }

  /** Greys an old plot, also while a call has no answer. */
  showAge() {
    this.figure.classList.toggle("stale", this.readAt > 0 && Date.now() - this.readAt >= STALE_AFTER);
  }
}

for (const figure of document.querySelectorAll("figure[data-plot]")) {
  const plot = new Plot(figure);
  plot.pass();
  setInterval(() => plot.showAge(), 1_000);
  const again = () => plot.redraw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = plot.canvas.clientWidth;
  new ResizeObserver(() => {
    if (plot.canvas.clientWidth === width) return;
    width = plot.canvas.clientWidth;
    again();
  }).observe(plot.canvas);
}
