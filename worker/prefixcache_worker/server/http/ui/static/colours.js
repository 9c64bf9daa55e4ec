// What the colours of the tree mean.

const NUM_HUES = 8;
const READERS = [0, 1, 2, 4, 8]; // from so many on
const USES_AGO = [1, 4, 16, 64]; // up to so many

export class Colours {
  #hues = new Map(); // by tenant, in the order in which they were seen

  /** The name of a cell's colour. */
  of(cell, by, latestUse) {
    if (by === "heat") return `heat-${READERS.findLastIndex((least) => cell.num_readers >= least)}`;
    if (by === "age") {
      const step = USES_AGO.findIndex((most) => latestUse - cell.last_used <= most);
      return `heat-${step < 0 ? 0 : USES_AGO.length - step}`;
    }
    if (!cell.public && cell.tenant === "") return "merged"; // of several owners
    return this.ofTenant(cell.public ? "" : cell.tenant);
  }

  /** Of a tenant; "" is what all may read. */
  ofTenant(tenant) {
    if (tenant === "") return "public";
    if (!this.#hues.has(tenant)) this.#hues.set(tenant, this.#hues.size % NUM_HUES);
    return `tenant-${this.#hues.get(tenant)}`;
  }

  /** Pairs of a colour and what it means. */
  legend(by, tenants) {
    if (by === "heat") {
      const words = ["no reader", "1 reader", "2 or 3", "4 to 7", "8 or more"];
      return words.map((word, step) => [`heat-${step}`, word]);
    }
    if (by === "age") {
      const words = ["used by the last request", "4 requests ago", "16", "64", "longer ago"];
      return words.map((word, step) => [`heat-${USES_AGO.length - step}`, word]);
    }
    return tenants.map((share) => [this.ofTenant(share.tenant), share.tenant || "public"]);
  }
}
