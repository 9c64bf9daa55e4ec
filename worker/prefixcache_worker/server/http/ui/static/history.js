// The last minutes of a worker's counts, as this page has seen them.

const SPAN_SECONDS = 300;
const RATIO_SECONDS = 10; // a ratio is over so many
const SPEED_SECONDS = 5;

export class History {
  spanSeconds = SPAN_SECONDS;
  #samples = []; // counts since the worker's start, the oldest first

  add({ prompt, cached, generated }) {
    const seconds = performance.now() / 1000;
    const last = this.#samples.at(-1);
    if (last && prompt < last.prompt) this.#samples = []; // the worker has been started anew
    this.#samples.push({ seconds, prompt, cached, generated });
    while (this.#samples[0].seconds < seconds - SPAN_SECONDS - RATIO_SECONDS) this.#samples.shift();
  }

  /** Pairs of seconds before now and the hit ratio then; null where no prompt began. */
  ratios() {
    const now = this.#samples.at(-1).seconds;
    return this.#samples.map((sample, index) => [now - sample.seconds, this.#ratioAt(index)]).slice(1);
  }

  /** The latest that is known; null if none is. */
  recentRatio() {
    return this.#samples.length ? this.#ratioAt(this.#samples.length - 1) : null;
  }

  generatedPerSecond() {
    const [then, now] = [this.#before(this.#samples.length - 1, SPEED_SECONDS), this.#samples.at(-1)];
    return then === now ? 0 : (now.generated - then.generated) / (now.seconds - then.seconds);
  }

  #ratioAt(index) {
    const [then, now] = [this.#before(index, RATIO_SECONDS), this.#samples[index]];
    const prompt = now.prompt - then.prompt;
    return prompt > 0 ? (now.cached - then.cached) / prompt : null;
  }

  #before(index, seconds) {
    const from = this.#samples[index].seconds - seconds;
    return this.#samples.find((sample) => sample.seconds >= from);
  }
}
