// What every program of this folder shares: where the gateway is, and how the outcome of each check is printed.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { z } from "zod";

const { CLIENTS_URL, CLIENTS_ADMIN, CLIENTS_MODEL, CLIENTS_KEY, CLIENTS_LIMITED_KEY } = process.env;
export const URL = CLIENTS_URL;
export const V1 = `${URL}/v1`;
export const MODEL = CLIENTS_MODEL;
export const KEY = CLIENTS_KEY;
export const LIMITED_KEY = CLIENTS_LIMITED_KEY;
export const HELLO = "Hello there, here is an answer in a few words.";
export const FAIL = "FAIL IN THE MIDDLE";
export const CITY = "Where is the capital of France?";
export const CALL = 'CALL get_weather {"city": "Paris"}';
export const SUNNY = "The tool said: sunny in Paris";
export const TOO_HOT = 9; // a temperature or top_p that no API takes
export const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const ANSWER = z.object({ city: z.string(), people: z.number().int() });
export const PARIS = { city: "Paris", people: 7 };
export const VECTORS = [
  [0.5, -0.5, 0.25, 1],
  [0.5, -0.5, 0.25, 1],
];
const TRIES = 10;

export const same = assert.deepEqual;
export const weather = ({ city }) => `sunny in ${city}`;

// Print the version of the package, then a line of JSON for each check: its name, and what went wrong or null.
export async function run(name, checks) {
  const file = new globalThis.URL(`node_modules/${name}/package.json`, import.meta.url);
  const { version } = JSON.parse(readFileSync(file));
  console.log(JSON.stringify({ version }));
  for (const [check, of] of Object.entries(checks)) {
    let error = null;
    try {
      await of();
    } catch (raised) {
      error = String(raised.stack ?? raised);
    }
    console.log(JSON.stringify({ check, error }));
  }
}

// `of` is rejected with an error of the class `kind` with `status`.
export async function raises(kind, status, of) {
  const error = await of().then(
    () => assert.fail(`nothing was raised, ${kind.name} was due`),
    (error) => error,
  );
  assert.ok(error instanceof kind, error.stack);
  same(error.status ?? error.statusCode, status);
}

async function refused() {
  const text = await (await fetch(`${CLIENTS_ADMIN}/metrics`)).text();
  const lines = text.matchAll(/^tailgate_requests_total\{[^}]*outcome="quota"[^}]*\} (\S+)/gm);
  return [...lines].reduce((sum, [, value]) => sum + Number(value), 0);
}

async function useUpTheLimit() {
  const headers = { authorization: `Bearer ${LIMITED_KEY}`, "content-type": "application/json" };
  const body = JSON.stringify({ model: MODEL, max_tokens: 8, messages: [{ role: "user", content: "hi" }] });
  for (let number = 0; number < 1000; number++) {
    const answer = await fetch(`${V1}/chat/completions`, { method: "POST", headers, body });
    await answer.text();
    if (answer.status === 429) return;
  }
  assert.fail("the limit was never reached");
}

// The outcome of a call that was refused at first. On a busy machine the limit may be over before the call.
export async function refusedThenServed(call) {
  for (let number = 0; number < TRIES; number++) {
    await useUpTheLimit();
    const before = await refused();
    const outcome = await call();
    if ((await refused()) > before) return outcome;
  }
  return assert.fail("the client was never refused");
}
