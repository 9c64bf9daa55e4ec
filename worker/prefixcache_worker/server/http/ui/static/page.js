// The live page: asks the worker once a second while somebody looks, and draws what it says.

import { Colours } from "./colours.js";
import { EventList } from "./events.js";
import { connectExplain } from "./explain.js";
import { History } from "./history.js";
import { IcicleView } from "./icicle.js";
import { drawFigures, drawHistory, drawHoldings, drawLatency, drawPool, drawRequests } from "./panels.js";
import { Refused, Source, Unreachable } from "./source.js";
import { bytes, count, number, percent, setText } from "./words.js";

const POLL_MILLISECONDS = 1000;
const RETRY_MILLISECONDS = 3000;

const source = new Source();
const colours = new Colours();
const history = new History();
const events = new EventList();
const icicle = new IcicleView(colours, zoom);
const status = document.getElementById("status");
const keyDialog = document.getElementById("key-dialog");
const shown = { root: null, by: "tokens", colour: "tenant", isPaused: false };
let timer = null;
let isAsking = false;
let wantsOther = false; // than what is being asked for
let blockBytes = 0;
let picture = null;

async function poll() {
  clearTimeout(timer);
  wantsOther = isAsking;
  if (isAsking || document.hidden || keyDialog.open) return;
  isAsking = true;
  let pause = POLL_MILLISECONDS;
  try {
    const [now, tree] = await Promise.all([source.get("data/now"), source.get(treeAddress())]);
    drawNow(now);
    if (!wantsOther) drawTree(tree);
    if (shown.isPaused) say("paused", "paused");
    else say("live", `live, as ${now.caller.role} of ${now.caller.tenant}`);
  } catch (error) {
    pause = RETRY_MILLISECONDS;
    if (error instanceof Refused && error.status === 401) askForKey(source.hasKey ? error.message : "");
    else if (error instanceof Refused) say("lost", error.message);
    else if (error instanceof Unreachable) say("lost", `${error.message}; asking again`);
    else throw error;
  } finally {
    isAsking = false;
    if (wantsOther) poll();
    else if (!shown.isPaused) timer = setTimeout(poll, pause);
  }
}

const treeAddress = () => `data/tree?by=${shown.by}${shown.root === null ? "" : `&root=${shown.root}`}`;

function drawNow({ model, stats, usage, requests, num_requests_left_out: numLeftOut, ...rest }) {
  blockBytes = model.block_bytes;
  setText("worker", `${model.name} on ${model.device}, ${model.kv_dtype}, blocks of ${count(model.block_size, "token")}`);
  document.getElementById("forget-key").hidden = !source.hasKey;
  document.getElementById("latency-card").hidden = stats === null;
  document.getElementById("events-card").hidden = rest.events === null;
  drawRequests(requests, numLeftOut, colours);
  if (stats) {
    history.add(stats.tokens);
    drawFigures(figuresOfAll(stats));
    drawPool(stats.blocks, rest.num_kept_blocks);
    drawLatency(stats.latencies);
    if (rest.events) events.add(rest.events, stats.evictions);
  } else {
    const { prompt_tokens: prompt, cached_tokens: cached, completion_tokens: generated } = usage;
    history.add({ prompt, cached, generated });
    drawFigures(figuresOfTenant(usage, requests.length));
    drawHoldings(usage, blockBytes);
  }
  setText("history-size", "of prompt tokens, each over 10 seconds");
  drawHistory(history.ratios(), history.spanSeconds);
}

function figuresOfAll({ blocks, tokens, requests }) {
  const { waiting, running } = requests;
  const reads = (100 * tokens.kv_rows_read) / (tokens.kv_rows_unshared || 1);
  return [
    ...tokenFigures(tokens),
    ["Requests", number(running), "running", `${number(waiting)} waiting, ${number(requests.finished)} finished`],
    ["Pool held", percent(blocks.live, blocks.total).replace(" %", ""), "%", `${bytes(blocks.live * blocks.block_bytes)} by requests, ${bytes(blocks.idle * blocks.block_bytes)} cached`],
    ["Attention reads", reads.toFixed(1), "%", "of the rows it would read without sharing"],
  ];
}

function figuresOfTenant(usage, numLive) {
  const tokens = { prompt: usage.prompt_tokens, cached: usage.cached_tokens, generated: usage.completion_tokens };
  return [
    ...tokenFigures(tokens),
    ["Requests", number(numLive), "live", `${number(usage.finished_requests)} finished`],
    ["Blocks of your own", number(usage.num_blocks), "", bytes(usage.num_blocks * blockBytes)],
    ["Prompt tokens computed", number(usage.computed_tokens), "", `${number(usage.cached_tokens)} came from the cache`],
  ];
}

function tokenFigures(tokens) {
  const recent = history.recentRatio();
  const ever = percent(tokens.cached, tokens.prompt);
  const ratio = recent === null ? ever : `${(100 * recent).toFixed(1)} %`;
  const remark = recent === null ? "since the start; no prompt just now" : `now; ${ever} since the start`;
  return [
    ["Hit ratio", ratio.replace(" %", ""), "%", remark],
    ["Generated", number(history.generatedPerSecond()), "tokens/s", `${number(tokens.generated)} since the start`],
  ];
}

function drawTree(tree) {
  const isNew = tree !== picture;
  picture = tree;
  shown.root = tree.root;
  const age = document.querySelector('#colour input[value="age"]');
  age.disabled = tree.latest_use === 0 && tree.num_nodes > 0; // only an admin is told
  setText("tree-size", `${count(tree.num_nodes, "node")}, ${shown.by === "tokens" ? count(tree.total, "token") : bytes(tree.total * blockBytes)}`);
  setText("tree-note", tree.num_left_out ? `${count(tree.num_left_out, "node")} far from the root are left out.` : "");
  if (isNew) redraw();
}

function redraw() {
  if (picture) icicle.draw(picture, { by: shown.by, colour: shown.colour, blockBytes });
}

function zoom(key) {
  shown.root = key;
  poll(); // while paused too: what was asked for by hand is shown
}

function say(state, sentence) {
  status.dataset.state = state;
  setText("status", sentence);
}

function askForKey(complaint) {
  setText("key-error", complaint);
  say("lost", "a key is needed");
  if (!keyDialog.open) keyDialog.showModal();
}

document.getElementById("key-form").addEventListener("submit", () => {
  const field = document.getElementById("key");
  source.setKey(field.value.trim());
  field.value = "";
});
keyDialog.addEventListener("close", poll);
document.getElementById("forget-key").addEventListener("click", () => {
  source.setKey(null);
  location.reload(); // nothing that the key has shown stays
});
document.getElementById("pause").addEventListener("click", (event) => {
  shown.isPaused = !shown.isPaused;
  event.target.setAttribute("aria-pressed", shown.isPaused);
  clearTimeout(timer);
  if (shown.isPaused) say("paused", "paused");
  else poll();
});
document.getElementById("width").addEventListener("change", (event) => {
  shown.by = event.target.value;
  poll();
});
document.getElementById("colour").addEventListener("change", (event) => {
  shown.colour = event.target.value;
  redraw();
});
document.addEventListener("visibilitychange", () => shown.isPaused || poll());

connectExplain(source);
poll();
