// The radix tree: each cell as wide as what hangs on it, below the cell that it goes on from.

import { bytes, count, element, number, oneLine, percent, swatch } from "./words.js";

const ROW_PIXELS = 29;
const NARROW_PIXELS = 44; // no word fits

export class IcicleView {
  #place = document.getElementById("icicle");
  #crumbs = document.getElementById("crumbs");
  #tooltip = document.getElementById("tooltip");
  #elements = new Map(); // by key
  #cells = new Map(); // the same cells as data, laid out
  #current = null; // key of the cell that Tab comes to
  #picture = null;

  /** `zoom` is told the key of the node to show, null for the whole tree. */
  constructor(colours, zoom) {
    this.colours = colours;
    this.zoom = zoom;
    this.#place.addEventListener("keydown", (event) => this.#onKey(event));
    this.#place.addEventListener("click", (event) => this.#open(event.target.closest(".cell")));
    this.#place.addEventListener("pointerover", (event) => this.#tell(event.target.closest(".cell")));
    this.#place.addEventListener("pointerleave", () => this.#tell(document.activeElement.closest(".cell")));
    this.#place.addEventListener("focusin", (event) => this.#tell(event.target.closest(".cell")));
    this.#place.addEventListener("focusout", () => this.#tell(null));
  }

  /** Draw a picture; `by` is what the width stands for, `colour` what the colour does. */
  draw(picture, { by, colour, blockBytes }) {
    this.#picture = { ...picture, by, colour, blockBytes };
    const cells = laidOut(picture, by);
    const hadFocus = this.#place.contains(document.activeElement);
    this.#cells = new Map(cells.map((cell) => [cell.key, cell]));
    for (const [key, old] of this.#elements) {
      if (!this.#cells.has(key)) {
        old.remove();
        this.#elements.delete(key);
      }
    }
    cells.forEach((cell, position) => this.#drawCell(cell, this.#place.children[position] ?? null));
    if (!this.#cells.has(this.#current)) this.#current = cells[0]?.key ?? null;
    this.#markCurrent();
    if (hadFocus && !this.#place.contains(document.activeElement)) this.#focus(this.#current);
    const depth = Math.max(0, ...cells.map((cell) => cell.depth + 1));
    this.#place.style.height = `${depth * ROW_PIXELS}px`;
    this.#drawCrumbs();
    this.#drawLegend();
  }

  #drawCell(cell, successor) {
    let drawn = this.#elements.get(cell.key);
    if (!drawn) {
      drawn = element("div", { role: "treeitem", tabindex: "-1" });
      drawn.dataset.key = cell.key;
      this.#elements.set(cell.key, drawn);
    }
    if (drawn !== successor) this.#place.insertBefore(drawn, successor);
    const { colour, latest_use: latestUse } = this.#picture;
    const isNarrow = cell.width * this.#place.clientWidth < NARROW_PIXELS;
    const isLive = cell.num_live_blocks > 0;
    drawn.className = `cell${isNarrow ? " narrow" : ""}${isLive ? " live" : ""}${isOne(cell) ? "" : " merged"}`;
    drawn.style.left = `${100 * cell.left}%`;
    drawn.style.width = `${100 * cell.width}%`;
    drawn.style.top = `${cell.depth * ROW_PIXELS}px`;
    drawn.style.background = `var(--${this.colours.of(cell, colour, latestUse)})`;
    const text = isNarrow ? "" : title(cell);
    if (drawn.textContent !== text) drawn.textContent = text;
    drawn.setAttribute("aria-level", cell.depth + 1);
    drawn.setAttribute("aria-label", this.#sentence(cell));
  }

  #sentence(cell) {
    const parts = [title(cell), count(cell.num_tokens, "token"), count(cell.num_blocks, "block")];
    parts.push(ownerOf(cell));
    if (cell.num_readers) parts.push(count(cell.num_readers, "reader"));
    return parts.join(", ");
  }

  #drawCrumbs() {
    const { root, lineage } = this.#picture;
    const steps = [{ key: null, text: "all prefixes" }];
    lineage.forEach((step) => steps.push({ key: step.key, text: oneLine(step.preview) || "private" }));
    const drawn = steps.map((step) => {
      const button = element("button", { type: "button" }, step.text);
      if (step.key === root) button.setAttribute("aria-current", "location");
      button.addEventListener("click", () => this.zoom(step.key));
      return element("li", {}, button);
    });
    const isSame = drawn.length === this.#crumbs.children.length
      && drawn.every((item, i) => item.textContent === this.#crumbs.children[i].textContent);
    if (!isSame) this.#crumbs.replaceChildren(...drawn); // else a focused one would lose it
  }

  #drawLegend() {
    const { colour, tenants } = this.#picture;
    const items = this.colours.legend(colour, tenants).map(([name, word]) => element("li", {}, swatch(name), word));
    items.push(element("li", {}, swatch("live"), "underlined: a request holds it"));
    document.getElementById("legend").replaceChildren(...items);
  }

  #onKey(event) {
    const cell = this.#cells.get(this.#current);
    if (!cell) return;
    const moves = {
      ArrowDown: () => this.#firstBelow(cell),
      ArrowUp: () => cell.parentKey,
      ArrowLeft: () => this.#beside(cell, -1),
      ArrowRight: () => this.#beside(cell, 1),
      Home: () => this.#inRow(cell.depth)[0].key,
      End: () => this.#inRow(cell.depth).at(-1).key,
    };
    if (event.key in moves) {
      this.#focus(moves[event.key]() ?? cell.key);
    } else if (event.key === "Enter" || event.key === " ") {
      this.#open(this.#elements.get(cell.key));
    } else if (event.key === "Escape" || event.key === "Backspace") {
      this.zoom(this.#picture.lineage.at(-2)?.key ?? null);
    } else {
      return;
    }
    event.preventDefault();
  }

  #firstBelow(cell) {
    return [...this.#cells.values()].find((other) => other.parentKey === cell.key)?.key;
  }

  #inRow(depth) {
    return [...this.#cells.values()].filter((cell) => cell.depth === depth);
  }

  #beside(cell, step) {
    const row = this.#inRow(cell.depth);
    return row[row.indexOf(cell) + step]?.key;
  }

  #focus(key) {
    this.#current = key;
    this.#markCurrent();
    this.#elements.get(key)?.focus();
  }

  #markCurrent() {
    for (const [key, drawn] of this.#elements) drawn.tabIndex = key === this.#current ? 0 : -1;
  }

  #open(drawn) {
    const cell = drawn && this.#cells.get(drawn.dataset.key);
    if (!cell) return;
    this.#focus(cell.key);
    if (isOne(cell)) this.zoom(cell.key === this.#picture.root ? (cell.above ?? null) : cell.key);
  }

  #tell(drawn) {
    const cell = drawn && this.#cells.get(drawn.dataset.key);
    this.#tooltip.hidden = !cell;
    if (!cell) return;
    const { by, total, blockBytes, latest_use: latestUse } = this.#picture;
    const rows = [];
    if (!isOne(cell)) rows.push(["nodes", `${number(cell.num_nodes)}, too narrow to be shown one by one`]);
    rows.push(["owner", cell.public ? "public: all tenants may read it" : ownerOf(cell)]);
    rows.push(["itself", `${count(cell.num_tokens, "token")} in ${count(cell.num_blocks, "block")}, ${bytes(cell.num_blocks * blockBytes)}`]);
    if (cell.total_tokens > cell.num_tokens) {
      rows.push(["with all below", `${count(cell.total_tokens, "token")}, ${bytes(cell.total_blocks * blockBytes)}`]);
    }
    rows.push(["of the tree", percent(by === "tokens" ? cell.total_tokens : cell.total_blocks, total)]);
    if (cell.num_readers) rows.push(["readers", `${number(cell.num_readers)} now, ${count(cell.num_live_blocks, "block")} in use`]);
    if (cell.last_used) rows.push(["last use", latestUse === cell.last_used ? "the last request" : `${count(latestUse - cell.last_used, "request")} ago`]);
    if (cell.num_below) rows.push(["deeper", `${count(cell.num_below, "node")}: zoom in to see them`]);
    const pairs = rows.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]);
    this.#tooltip.replaceChildren();
    if (cell.preview) this.#tooltip.append(element("blockquote", {}, `“${oneLine(cell.preview)}…”`));
    this.#tooltip.append(element("dl", {}, ...pairs));
    const box = drawn.getBoundingClientRect();
    const left = Math.min(box.left, document.documentElement.clientWidth - this.#tooltip.offsetWidth - 12);
    this.#tooltip.style.left = `${Math.max(8, left) + scrollX}px`;
    this.#tooltip.style.top = `${box.bottom + 8 + scrollY}px`;
  }
}

const isOne = (cell) => cell.preview !== null; // and not several that are too narrow

const ownerOf = (cell) => (cell.public ? "public" : cell.tenant || "several tenants");

function title(cell) {
  if (!isOne(cell)) return `${number(cell.num_nodes)} more`;
  return oneLine(cell.preview) || `${cell.tenant}: ${count(cell.num_tokens, "token")}`;
}

/** The cells with their place in the picture: left and width as shares of it, depth in rows. */
function laidOut({ cells, root, total, lineage }, by) {
  const whole = root === null ? total : cells[0][`total_${by}`];
  const ends = new Map(); // of what is drawn below a cell so far
  const placed = [];
  for (const cell of cells) {
    const above = placed[cell.parent];
    const left = ends.get(cell.parent) ?? above?.left ?? 0;
    const width = whole ? cell[`total_${by}`] / whole : 0;
    ends.set(cell.parent, left + width);
    const depth = above ? above.depth + 1 : 0;
    const step = lineage.findIndex((one) => one.key === cell.key);
    placed.push({ ...cell, left, width, depth, parentKey: above?.key, above: lineage[step - 1]?.key });
  }
  return placed;
}
