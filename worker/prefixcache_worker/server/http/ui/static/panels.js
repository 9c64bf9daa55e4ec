// The panels of figures: what the worker counts, drawn.

import { bytes, count, drawn, element, number, percent, seconds, setText, swatch } from "./words.js";

const MAP_COLUMNS = 40;
const MAP_ROWS = 10;

/** Large figures: triples of a name, a value with a unit, and a remark. */
export function drawFigures(figures) {
  const cards = figures.map(([name, value, unit, remark]) => {
    const term = element("dt", {}, name);
    const text = element("dd", {}, value, " ", element("small", {}, unit));
    return element("div", { class: "card figure" }, element("dl", {}, term, text), element("p", {}, remark));
  });
  document.getElementById("figures").replaceChildren(...cards);
}

/** The pool as a map, in which each cell is as many blocks as the pool has for it. */
export function drawPool({ total, live, idle, free, block_bytes: blockBytes, live_unshared: unshared }, kept) {
  const states = [
    ["live", "held by requests", live],
    ["kept", "kept by prefixes alone", kept],
    ["idle", "cached, can be evicted", idle - kept],
    ["free", "empty", free],
  ];
  const numCells = Math.min(total, MAP_COLUMNS * MAP_ROWS);
  const map = drawn("svg", { class: "map", viewBox: "0 0 400 100", role: "img" });
  map.setAttribute("aria-label", states.map(([, word, blocks]) => `${word}: ${count(blocks, "block")}`).join("; "));
  let [begin, seen] = [0, 0];
  for (const [colour, , blocks] of states) {
    seen += blocks;
    const end = Math.round((numCells * seen) / total);
    const path = Array.from({ length: end - begin }, (_, i) => square(begin + i)).join("");
    const shape = drawn("path", { d: path });
    shape.style.fill = `var(--${colour})`;
    map.append(shape);
    begin = end;
  }
  const keys = states.map(([colour, word, blocks]) => element("li", {},
    swatch(colour), element("span", {}, word), element("b", {}, number(blocks)),
    element("span", {}, percent(blocks, total))));
  const times = live ? unshared / live : 1;
  const remark = times > 1.005
    ? `Without sharing, the requests would hold ${count(unshared, "block")}: ${times.toFixed(1)} times as many.`
    : "";
  document.getElementById("pool").replaceChildren(
    map, element("ul", { class: "keys" }, ...keys), element("p", { class: "quiet" }, remark));
  setText("pool-size", `${count(total, "block")} of ${bytes(blockBytes)}`);
}

/** The same for who is told of its own tenant alone. */
export function drawHoldings(usage, blockBytes) {
  const rows = [
    ["blocks of your own", `${number(usage.num_blocks)}, ${bytes(usage.num_blocks * blockBytes)}`],
    ["kept by your prefixes", number(usage.num_pinned_blocks)],
    ["evicted so far", number(usage.num_evicted_blocks)],
    ["never evicted for others", number(usage.floor_blocks)],
    ["at most", usage.ceiling_blocks === null ? "no bound" : number(usage.ceiling_blocks)],
  ];
  const pairs = rows.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]);
  document.getElementById("pool").replaceChildren(element("dl", { class: "pairs" }, ...pairs));
  setText("pool-size", "of all tenants only an admin is told");
}

function square(index) {
  // Column by column, so that what a state holds stays in one piece.
  const [x, y] = [10 * Math.floor(index / MAP_ROWS), 10 * (index % MAP_ROWS)];
  return `M${x + 0.75} ${y + 0.75}h8.5v8.5h-8.5z`;
}

const STATE_WORDS = {
  REQUEST_STATE_WAITING: "waiting",
  REQUEST_STATE_PREFILLING: "prefilling",
  REQUEST_STATE_DECODING: "decoding",
  REQUEST_STATE_PAUSED: "paused",
};
const COLUMNS = [
  ["request"], ["tenant"], ["state"], ["prompt, cached part"], ["answer", "number"],
  ["blocks", "number"], ["shared", "number"], ["age", "number"],
];

/** What runs and waits, and what of it is shared. */
export function drawRequests(requests, numLeftOut, colours) {
  const place = document.getElementById("requests");
  const numWaiting = requests.filter((one) => one.state === "REQUEST_STATE_WAITING").length;
  setText("requests-size", `${number(requests.length - numWaiting)} running, ${number(numWaiting)} waiting`
    + (numLeftOut ? `, ${number(numLeftOut)} more` : ""));
  if (!requests.length) {
    place.replaceChildren(element("p", { class: "empty" }, "No request runs or waits."));
    return;
  }
  const head = COLUMNS.map(([word, kind]) => element("th", { scope: "col", class: kind ?? "" }, word));
  const rows = requests.map((request) => requestRow(request, colours));
  place.replaceChildren(element("table", {},
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
}

function requestRow(request, colours) {
  const { prompt_tokens: prompt, cached_tokens: cached, computed_tokens: computed } = request;
  const bar = element("span", { class: "bar", "aria-hidden": "true" });
  for (const [kind, tokens] of [["cached", cached], ["computed", Math.max(0, Math.min(computed, prompt) - cached)]]) {
    const part = element("i", { class: `fill-${kind}` });
    part.style.width = `${(100 * tokens) / prompt}%`;
    bar.append(part);
  }
  const name = request.num_choices > 1 ? `${request.request_id} ×${request.num_choices}` : request.request_id;
  const owner = element("span", { class: "state" }, swatch(colours.ofTenant(request.tenant)), request.tenant);
  return element("tr", {},
    element("td", { class: "id code", title: name }, name),
    element("td", {}, owner),
    element("td", {}, STATE_WORDS[request.state]),
    element("td", {}, bar, `${number(cached)} of ${number(prompt)}`),
    element("td", { class: "number" }, number(request.output_tokens)),
    element("td", { class: "number" }, number(request.num_blocks)),
    element("td", { class: "number" }, number(request.num_shared_blocks)),
    element("td", { class: "number" }, seconds(request.age_seconds)));
}

const LATENCY_WORDS = {
  queue: "in the queue",
  first_token: "to the first token",
  inter_token: "between tokens",
  request: "whole request",
};

/** How long requests took, as the worker saw it. */
export function drawLatency(latencies) {
  const place = document.getElementById("latency");
  if (!latencies.length) {
    place.replaceChildren(element("p", { class: "empty" }, "No request has been measured yet."));
    return;
  }
  const head = ["", "p50", "p90", "p99"].map((word) => element("th", { scope: "col", class: word && "number" }, word));
  const rows = latencies.map((one) => element("tr", {},
    element("td", {}, LATENCY_WORDS[one.name] ?? one.name),
    ...["p50", "p90", "p99"].map((name) => element("td", { class: "number" }, seconds(one[`${name}_seconds`])))));
  place.replaceChildren(element("table", {},
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
}

/** A ratio over time: `points` are pairs of seconds before now and a share, null where there is none. */
export function drawHistory(points, spanSeconds) {
  const place = document.getElementById("history");
  const [width, height, left, bottom] = [place.clientWidth, 262, 46, 24];
  const x = (ago) => left + (width - left - 6) * (1 - ago / spanSeconds);
  const y = (share) => 8 + (height - bottom - 8) * (1 - share);
  const chart = drawn("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const share of [0, 0.5, 1]) {
    chart.append(drawn("line", { class: "grid", x1: left, x2: width - 6, y1: y(share), y2: y(share) }));
    chart.append(drawn("text", { x: left - 8, y: y(share) + 5, "text-anchor": "end" }, `${100 * share} %`));
  }
  for (const [ago, anchor] of [[spanSeconds, "start"], [spanSeconds / 2, "middle"], [0, "end"]]) {
    const word = ago ? `${ago / 60} min ago` : "now";
    chart.append(drawn("text", { x: x(ago), y: height - 4, "text-anchor": anchor }, word));
  }
  const known = points.filter(([, share]) => share !== null);
  if (known.length > 1) {
    const line = known.map(([ago, share]) => `${x(ago).toFixed(1)} ${y(share).toFixed(1)}`).join("L");
    const [first, last] = [x(known[0][0]), x(known.at(-1)[0])];
    chart.append(drawn("path", { class: "hit-area", d: `M${first} ${y(0)}L${line}L${last} ${y(0)}z` }));
    chart.append(drawn("path", { class: "hit", d: `M${line}` }));
  }
  const latest = known.at(-1)?.[1];
  const sentence = latest === undefined ? "no prompt yet" : `${(100 * latest).toFixed(1)} % of prompt tokens came from the cache`;
  chart.setAttribute("aria-label", `Hit ratio over ${spanSeconds / 60} minutes; now ${sentence}`);
  place.replaceChildren(chart);
}
