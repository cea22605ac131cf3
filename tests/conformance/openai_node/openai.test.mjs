// openai-node against the server: what openai_python checks, in small.
import assert from "node:assert/strict";
import test from "node:test";
import { setTimeout } from "node:timers/promises";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = process.env.SERVED_MODEL;
const client = new OpenAI({ maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "user", content: "Why is the old machine so quiet?" }];
const greedy = { model, temperature: 0, max_tokens: 12, ignore_eos: true };
const colours = ["red", "green", "blue"];
const parameters = {
  type: "object",
  properties: { colour: { enum: colours } },
  required: ["colour"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "paint", strict: true, parameters } }];

const gathered = async (stream) => {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return pieces;
};

test("the model is listed", async () => {
  assert.deepEqual((await client.models.list()).data.map((each) => each.id), [model]);
});

test("a completion counts its tokens", async () => {
  const answer = await client.completions.create({ ...greedy, prompt: "def main():" });
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 12);
});

test("a chat's stream is the same text and ends with its usage", async () => {
  const whole = await client.chat.completions.create({ ...greedy, messages });
  const pieces = await gathered(
    await client.chat.completions.create({
      ...greedy,
      messages,
      stream: true,
      stream_options: { include_usage: true },
    }),
  );
  const text = pieces.map((piece) => piece.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  const counted = ({ usage }) => [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens];
  assert.deepEqual(counted(pieces.at(-1)), counted(whole));
});

test("logprobs, several answers and a seed", async () => {
  const draw = async (seed) => {
    const asked = { ...greedy, messages, n: 2, seed, temperature: 1, logprobs: true };
    const answer = await client.chat.completions.create(asked);
    assert.equal(answer.choices[0].logprobs.content.length, 12);
    return answer.choices.map((choice) => choice.message.content);
  };
  const first = await draw(5);
  assert.notEqual(first[0], first[1]);
  assert.deepEqual(await draw(5), first);
});

test("a stop string ends the text before it", async () => {
  const asked = { ...greedy, max_tokens: 24, prompt: "def main():" };
  const whole = (await client.completions.create(asked)).choices[0].text;
  const stop = whole.slice(8, 10);
  const { text, finish_reason } = (await client.completions.create({ ...asked, stop })).choices[0];
  assert.equal(text, whole.slice(0, whole.indexOf(stop)));
  assert.equal(finish_reason, "stop");
});

for (const choice of ["required", { type: "function", function: { name: "paint" } }]) {
  test(`a tool is called: ${JSON.stringify(choice)}`, async () => {
    const asked = { model, messages, temperature: 0, max_tokens: 200, tools, tool_choice: choice };
    const answer = await client.chat.completions.create(asked);
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(call.function.name, "paint");
    assert.ok(colours.includes(JSON.parse(call.function.arguments).colour));

    const pieces = await gathered(
      await client.chat.completions.create({ ...asked, stream: true }),
    );
    const streamed = pieces
      .flatMap((piece) => piece.choices[0]?.delta.tool_calls ?? [])
      .filter((part) => part.index === 0)
      .map((part) => part.function.arguments ?? "")
      .join("");
    assert.deepEqual(JSON.parse(streamed), JSON.parse(call.function.arguments));
  });
}

test("parse gives what the schema says", async () => {
  const Paint = z.object({ colour: z.enum(colours), sure: z.boolean() });
  const answer = await client.chat.completions.parse({
    model,
    messages,
    max_tokens: 200,
    response_format: zodResponseFormat(Paint, "paint"),
  });
  assert.ok(Paint.safeParse(answer.choices[0].message.parsed).success);
});

test("a response, and its stream in events of rising number", async () => {
  const asked = { model, input: "Why?", max_output_tokens: 12, temperature: 0 };
  const whole = await client.responses.create(asked);
  const events = await gathered(await client.responses.create({ ...asked, stream: true }));
  assert.deepEqual(
    events.map((event) => event.sequence_number),
    events.map((_, index) => index),
  );
  const text = events
    .filter((event) => event.type === "response.output_text.delta")
    .map((event) => event.delta)
    .join("");
  assert.equal(text, whole.output_text);
});

test("errors have the client's own classes", async () => {
  const ask = (given, options) =>
    client.completions.create({ model, prompt: "a", max_tokens: 1, ...given }, options);
  await assert.rejects(ask({ model: "gpt-unknown" }), OpenAI.NotFoundError);
  await assert.rejects(ask({ temperature: -1 }), OpenAI.BadRequestError);
  const tokens = Array(Number(process.env.CONTEXT_TOKENS) + 1).fill(9);
  await assert.rejects(ask({ prompt: tokens }), OpenAI.BadRequestError);
  const stranger = new OpenAI({ apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  const large = "a".repeat(Number(process.env.BODY_BYTES_MAX) + 1);
  await assert.rejects(ask({ prompt: large }), (error) => error.status === 413);
});

test("a client that waits as it is told is served in the end", async () => {
  const options = { apiKey: process.env.SINGLE_API_KEY, maxRetries: 0 };
  const single = new OpenAI(options);
  const given = { model, prompt: "a", max_tokens: 40, ignore_eos: true };
  const stream = await single.completions.create({ ...given, stream: true });
  const pieces = stream[Symbol.asyncIterator]();
  await pieces.next();
  await assert.rejects(single.completions.create({ ...given, max_tokens: 1 }), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.ok(Number(error.headers.get("retry-after-ms")) > 0);
    return true;
  });
  const patient = new OpenAI({ ...options, maxRetries: 60 });
  const later = patient.completions.create({ ...given, max_tokens: 1 });
  while (!(await pieces.next()).done);
  assert.equal((await later).usage.completion_tokens, 1);
});

const requestsRunning = async () => {
  const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}` };
  const page = await (await fetch(`${process.env.ULTRASERVE_URL}/metrics`, { headers })).text();
  const found = [...page.matchAll(/^vllm:num_requests_running\{.*\} (\S+)$/gm)];
  assert.ok(found.length, "the server has no vllm:num_requests_running");
  return found.reduce((total, [, value]) => total + Number(value), 0);
};

test("a client that leaves a stream ends its request", async () => {
  const asked = { ...greedy, max_tokens: 3_900, messages, stream: true };
  const started = Date.now();
  for await (const piece of await client.chat.completions.create(asked)) {
    assert.ok(piece.id);
    assert.equal(await requestsRunning(), 1);
    break; // leaves, which the client makes an abort
  }
  while ((await requestsRunning()) && Date.now() < started + 30_000) await setTimeout(100);
  assert.equal(await requestsRunning(), 0);
});
