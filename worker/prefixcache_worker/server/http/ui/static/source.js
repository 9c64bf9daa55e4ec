// What the worker says, asked for with the key that this tab knows.

const KEY = "prefixcache-api-key";

/** The worker refuses; `status` is HTTP's, and the message the worker's own sentence. */
export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** Nobody answers. */
export class Unreachable extends Error {}

export class Source {
  #known = new Map(); // the last answer and its tag, by path: of one path, one query at a time

  get hasKey() {
    return sessionStorage.getItem(KEY) !== null;
  }

  /** Use this key from now on; null: none. */
  setKey(key) {
    if (key === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, key);
    this.#known.clear();
  }

  /** What is at an address; the same object as before where nothing has changed. Throws Refused. */
  async get(address) {
    const path = address.split("?")[0];
    const last = this.#known.get(path);
    const known = last?.address === address ? last : undefined;
    const headers = { ...this.#credential(), ...(known && { "if-none-match": known.tag }) };
    const response = await asked(address, { headers, cache: "no-store" });
    if (response.status === 304 && known) return known.answer;
    const answer = await answerOf(response);
    this.#known.set(path, { address, tag: response.headers.get("etag"), answer });
    return answer;
  }

  async post(address, body) {
    const headers = { ...this.#credential(), "content-type": "application/json" };
    return answerOf(await asked(address, { method: "POST", headers, body: JSON.stringify(body) }));
  }

  #credential() {
    const key = sessionStorage.getItem(KEY);
    return key === null ? {} : { authorization: `Bearer ${key}` };
  }
}

async function asked(address, options) {
  try {
    return await fetch(address, options);
  } catch {
    throw new Unreachable("the worker does not answer");
  }
}

async function answerOf(response) {
  if (response.ok) return response.json();
  let sentence = `the worker answers ${response.status}`;
  try {
    sentence = (await response.json()).error.message;
  } catch {
    // Whatever stands between us and the worker has answered in words of its own.
  }
  throw new Refused(response.status, sentence);
}
