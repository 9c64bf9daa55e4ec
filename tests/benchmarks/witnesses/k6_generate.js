// Groups of users with a prompt in common, at a held rate: what `prefixcache bench shared-prefix` sends, by k6.
// Settings come as environment variables; k6.py gives them.
import exec from 'k6/execution';
import grpc from 'k6/net/grpc';
import { Counter, Trend } from 'k6/metrics';

const GROUPS = Number(__ENV.GROUPS);
const PREFIX_TOKENS = Number(__ENV.PREFIX_TOKENS);
const SUFFIX_TOKENS = Number(__ENV.SUFFIX_TOKENS);
const OUTPUT_TOKENS = Number(__ENV.OUTPUT_TOKENS);
const RATE = Number(__ENV.RATE);
const REQUESTS = Number(__ENV.REQUESTS);

export const options = {
  scenarios: {
    generate: {
      executor: 'constant-arrival-rate',
      rate: RATE,
      timeUnit: '1s',
      duration: `${Math.round((1000 * (REQUESTS - 0.5)) / RATE)}ms`, // one more would begin at its end
      preAllocatedVUs: 64,
    },
  },
};

const began = new Trend('began');
const ended = new Trend('ended');
const firstToken = new Trend('first_token');
const perToken = new Trend('per_token');
const total = new Trend('total');
const promptTokens = new Counter('prompt_tokens');
const cachedTokens = new Counter('cached_tokens');
const outputTokens = new Counter('output_tokens');
const answered = new Counter('answered');
const failed = new Counter('failed');

const client = new grpc.Client();
client.load([__ENV.PROTO], 'prefixcache/v1/inference.proto');
let connected = false;

// The same tokens for the same seed: a linear congruential generator (Knuth, "Seminumerical Algorithms", 3.3.4).
function tokens(seed, count) {
  const ids = [];
  let state = (seed + 1) * 2654435761 % 2147483647;
  for (let i = 0; i < count; i += 1) {
    state = state * 48271 % 2147483647;
    ids.push(100 + state % 39900);
  }
  return ids;
}

function generate(ids, maxTokens, whenAnswered) {
  if (!connected) {
    client.connect(__ENV.ADDRESS, { plaintext: true });
    connected = true;
  }
  const stream = new grpc.Stream(client, 'prefixcache.v1.InferenceService/Generate', {});
  const answer = { began: Date.now(), first: null, last: null, usage: null };
  stream.on('data', (response) => {
    if (response.delta && response.delta.tokenIds && response.delta.tokenIds.length) {
      answer.last = Date.now();
      answer.first = answer.first || answer.last;
    }
    if (response.completion) {
      answer.usage = response.completion.usage;
    }
  });
  stream.on('error', () => failed.add(1));
  stream.on('end', () => {
    if (answer.usage) {
      whenAnswered({ ...answer, ended: Date.now() });
    }
  });
  stream.write({
    tokenIds: { ids },
    sampling: { temperature: 0 },
    stopConditions: { maxTokens, ignoreEos: true },
  });
  stream.end();
}

// Every prefix once, before anything is measured.
export function setup() {
  for (let group = 0; group < GROUPS; group += 1) {
    generate([...tokens(group, PREFIX_TOKENS), 50], 1, () => {});
  }
}

export default function () {
  const number = exec.scenario.iterationInTest;
  const ids = [...tokens(number % GROUPS, PREFIX_TOKENS), ...tokens(1000 + number, SUFFIX_TOKENS)];
  generate(ids, OUTPUT_TOKENS, (answer) => {
    const { usage } = answer;
    began.add(answer.began);
    ended.add(answer.ended);
    firstToken.add(answer.first - answer.began);
    perToken.add((answer.last - answer.first) / (usage.completionTokens - 1));
    total.add(answer.ended - answer.began);
    promptTokens.add(usage.promptTokens);
    cachedTokens.add(usage.cachedTokens || 0);
    outputTokens.add(usage.completionTokens);
    answered.add(1);
  });
}

export function handleSummary(data) {
  return { [__ENV.REPORT]: JSON.stringify(data.metrics) };
}
