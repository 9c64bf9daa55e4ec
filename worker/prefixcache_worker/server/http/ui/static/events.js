// What has come into the cache and left it, the latest first.

import { count, element, number, setText } from "./words.js";

const MAX_SHOWN = 100;

export class EventList {
  #place = document.getElementById("events");
  #last = null; // number of the latest event shown

  /** Add what is new among the latest events. */
  add(events, evictions) {
    const isFirst = this.#last === null;
    const fresh = events.filter((event) => isFirst || BigInt(event.number) > this.#last);
    if (!isFirst && fresh.length && BigInt(fresh[0].number) > this.#last + 1n) {
      const missed = BigInt(fresh[0].number) - this.#last - 1n;
      this.#place.prepend(row("", "missed", `${number(missed)} more, too fast for this page`));
    }
    const now = isFirst ? "before" : new Date().toTimeString().slice(0, 8);
    for (const event of joined(fresh)) this.#place.prepend(row(now, event.kind, words(event)));
    if (fresh.length) this.#last = BigInt(fresh.at(-1).number);
    while (this.#place.children.length > MAX_SHOWN) this.#place.lastChild.remove();
    const gone = evictions.filter((one) => one.num_blocks).map(({ cause, num_blocks: blocks }) => `${number(blocks)} ${cause}`);
    setText("events-size", gone.length ? `blocks gone so far: ${gone.join(", ")}` : "");
    if (isFirst && !events.length && !this.#place.children.length) {
      this.#place.replaceChildren(element("p", { class: "empty" }, "Nothing has happened yet."));
    } else if (fresh.length) {
      this.#place.querySelector(".empty")?.remove();
    }
  }
}

/** Events of one kind that follow each other, as one with the sum of their blocks. */
function joined(events) {
  const runs = [];
  for (const event of events) {
    const last = runs.at(-1);
    if (last && ["kind", "public", "cause"].every((field) => last[field] === event[field])) {
      last.num_blocks += event.num_blocks;
      last.num_tokens += event.num_tokens;
    } else {
      runs.push({ ...event });
    }
  }
  return runs;
}

function words(event) {
  if (event.kind === "stored") {
    return `${count(event.num_blocks, event.public ? "public block" : "private block")}, ${count(event.num_tokens, "token")}`;
  }
  return event.kind === "removed" ? `${count(event.num_blocks, "block")}: ${event.cause}` : "everything";
}

function row(time, kind, text) {
  return element("div", { class: `event ${kind}` },
    element("span", { class: "quiet" }, time), element("span", { class: "kind" }, kind), element("span", {}, text));
}
