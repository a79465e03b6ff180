// Drives the `openai` package of npm: `OpenAIRealtimeWS`. It only speaks wss, so a test puts a TLS front before the
// gateway; CA_FILE names the certificate to trust. With --beta it is the older class of that name, in the beta dialect.
// The conversation is the one of talk.py, told again in this language.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

const require = createRequire(`${process.env.NODE_FOLDER}/`);
const { OpenAI } = require("openai");
const { VERSION } = require("openai/version");

const RATE_HZ = 24_000, PIECE_MS = 40, ENOUGH_BYTES = 2 * RATE_HZ * 0.5, REST_MS = 300, PATIENCE_MS = 60_000;

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { beta: { type: "boolean" }, explicit: { type: "boolean" }, "rate-hz": { type: "string" } },
});
const { OpenAIRealtimeWS } = require(values.beta ? "openai/beta/realtime/ws" : "openai/realtime/ws");
const [url, folder] = positionals;
const clips = [0, 1, 2].map((number) => readFileSync(`${folder}/said-${number}.pcm`));

const answers = [], seen = {}, errors = [];
let toSay = Buffer.alloc(0);
let changed = () => {};

const say = (clip) => { toSay = Buffer.concat([toSay, clips[clip]]); };
const audioOf = (answer) => Buffer.concat(answer?.audio ?? []);
const isHeard = (number) => audioOf(answers[number]).length >= ENOUGH_BYTES;
const isOver = (number) => Boolean(answers[number]?.status);

function take(event) {
  seen[event.type] = (seen[event.type] ?? 0) + 1;
  const answer = answers.at(-1);
  switch (event.type) {
    case "response.created": answers.push({ audio: [], transcript: "", status: "" }); break;
    case "response.audio.delta":
    case "response.output_audio.delta": answer.audio.push(Buffer.from(event.delta, "base64")); break;
    case "response.audio_transcript.delta":
    case "response.output_audio_transcript.delta": answer.transcript += event.delta; break;
    case "response.done": answer.status = event.response.status; break;
  }
  changed();
}

async function until(reached) {
  while (!reached()) {
    if (errors.length) throw new Error("the conversation was given up");
    await new Promise((resolve) => { changed = resolve; });
  }
}

function feed(realtime) {
  const size = 2 * RATE_HZ * PIECE_MS / 1000;
  let sent = 0;
  const began = performance.now();
  return setInterval(() => {
    for (; sent * PIECE_MS <= performance.now() - began; sent += 1) {
      const piece = Buffer.alloc(size);
      toSay.copy(piece, 0, 0, size);
      toSay = toSay.subarray(size);
      realtime.send({ type: "input_audio_buffer.append", audio: piece.toString("base64") });
    }
  }, PIECE_MS / 2);
}

async function hold() {
  say(0);
  await until(() => isOver(0));
  await new Promise((resolve) => setTimeout(resolve, REST_MS));
  say(1);
  await until(() => isHeard(1));
  say(2);
  await until(() => isOver(1) && isOver(2));
}

const explicit = {
  type: "realtime",
  output_modalities: ["audio"],
  audio: {
    input: {
      format: { type: "audio/pcm", rate: RATE_HZ },
      turn_detection: { type: "server_vad", silence_duration_ms: 500, create_response: true, interrupt_response: true },
    },
    output: { format: { type: "audio/pcm", rate: RATE_HZ } },
  },
};

const explicitBeta = {
  modalities: ["audio", "text"],
  input_audio_format: "pcm16",
  output_audio_format: "pcm16",
  turn_detection: { type: "server_vad", silence_duration_ms: 500, create_response: true, interrupt_response: true },
};

const client = new OpenAI({ apiKey: "k", baseURL: `${url}/v1` });
const model = values.explicit ? "loopback" : "gpt-realtime";
const realtime = new OpenAIRealtimeWS({ model, options: { ca: readFileSync(process.env.CA_FILE) } }, client);
realtime.on("event", take);
realtime.on("error", (error) => { errors.push(String(error.message ?? error)); changed(); });
const closed = new Promise((resolve) => realtime.socket.on("close", resolve));
await new Promise((resolve) => { realtime.socket.on("open", resolve); realtime.socket.on("close", resolve); });
if (values.explicit) realtime.send({ type: "session.update", session: values.beta ? explicitBeta : explicit });
const feeding = feed(realtime);
const patience = setTimeout(() => { errors.push("the conversation stood still"); changed(); }, PATIENCE_MS);
try {
  await hold();
} catch (error) {
  errors.push(error.message);
}
clearInterval(feeding);
clearTimeout(patience);
realtime.close();
await closed;
answers.forEach((answer, number) => writeFileSync(`${folder}/heard-${number}.pcm`, audioOf(answer)));
const said = answers.map(({ transcript, status }) => ({ transcript, status }));
console.log(JSON.stringify({ version: VERSION, answers: said, seen, errors }));
