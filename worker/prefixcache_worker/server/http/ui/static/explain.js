// Why a prompt is cached no further.

import { element, number, percent } from "./words.js";

/** Let the form ask the source. */
export function connectExplain(source) {
  const form = document.getElementById("explain");
  const answer = document.getElementById("explanation");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      answer.replaceChildren(...told(await source.post("data/explain", question(form.prompt.value))));
    } catch (error) {
      answer.replaceChildren(element("p", { class: "error" }, error.message));
    }
  });
}

function question(text) {
  try {
    const messages = JSON.parse(text);
    if (Array.isArray(messages) && messages.every((one) => typeof one?.role === "string")) return { messages };
  } catch {
    // Then it is a text.
  }
  return { prompt: text };
}

function told(explanation) {
  const { num_prompt_tokens: all, num_cached_tokens: cached, divergence } = explanation;
  const bar = element("span", { class: "bar", "aria-hidden": "true" }, element("i", { class: "fill-cached" }));
  bar.firstChild.style.width = `${all ? (100 * cached) / all : 0}%`;
  const parts = [
    element("p", {}, bar, `${number(cached)} of ${number(all)} tokens, ${percent(cached, all)}`),
    element("p", { class: "sentence" }, `${explanation.summary}.`),
  ];
  if (divergence) {
    const [same, mine, cachedText] = parted(divergence.prompt_preview, divergence.cached_preview);
    const rows = [["your prompt", mine]];
    if (divergence.cached_token !== null) rows.push(["the cache has", cachedText]);
    const pairs = rows.flatMap(([term, rest]) => [
      element("dt", {}, term),
      element("dd", { class: "code" }, `…${same}`, element("mark", {}, rest || "(end)"), "…"),
    ]);
    parts.push(element("dl", { class: "pairs" }, ...pairs));
  }
  return parts;
}

/** What two texts begin with in common, and the rest of each. */
function parted(one, other) {
  const [a, b] = [[...one], [...other]];
  let end = 0;
  while (end < a.length && end < b.length && a[end] === b[end]) end += 1;
  return [a.slice(0, end).join(""), a.slice(end).join(""), b.slice(end).join("")];
}
