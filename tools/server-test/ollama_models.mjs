// Ollama's own JavaScript client: pull, create, copy, delete, ps, keep_alive.
//
//   node ollama_models.mjs URL MODEL      URL: a `trine serve` without models; MODEL: one that its hub has
//
// Run by test_ollama_models.py, which starts server and hub.

import assert from "node:assert/strict";
import { Ollama } from "ollama";

const [, , host, model] = process.argv;
const ollama = new Ollama({ host });
const names = async (list) => (await list).models.map((entry) => entry.name);
const options = { num_predict: 4, temperature: 0 };

const parts = [];
for await (const part of await ollama.pull({ model, stream: true })) parts.push(part);
assert.equal(parts.at(-1).status, "success");
assert.ok(parts.some((part) => part.total > 0 && part.completed === part.total && part.digest));
assert.equal((await ollama.pull({ model })).status, "success");
assert.ok((await names(ollama.list())).some((name) => name.startsWith(model)));

await ollama.create({ model: "sailor", from: model, system: "You are a sailor.", parameters: { num_predict: 3, stop: ["zzz"] } });
await ollama.copy({ source: "sailor", destination: "mate" });
const shown = await ollama.show({ model: "mate" });
assert.equal(shown.system, "You are a sailor.");
assert.match(shown.parameters, /num_predict 3/);
const answer = await ollama.chat({ model: "mate", messages: [{ role: "user", content: "Hi" }] });
assert.equal(answer.eval_count, 3);
assert.equal(answer.model, "mate");

const base = (await names(ollama.ps())).find((name) => name.startsWith(model));
assert.ok(base, "the model is loaded");
await ollama.generate({ model, prompt: "Hi", options, keep_alive: "10m" });
const running = (await ollama.ps()).models.find((entry) => entry.name === base);
const minutes = (new Date(running.expires_at) - Date.now()) / 60000;
assert.ok(minutes > 8 && minutes < 11, `it expires in ${minutes} minutes`);
assert.ok(running.size > 0);
assert.equal((await ollama.generate({ model, prompt: "", keep_alive: 0 })).done_reason, "unload");
assert.ok(!(await names(ollama.ps())).includes(base));

await ollama.delete({ model: "sailor" });
await ollama.delete({ model: "mate" });
await ollama.delete({ model });
assert.deepEqual(await names(ollama.list()), ["demo"]);
await assert.rejects(ollama.chat({ model, messages: [{ role: "user", content: "Hi" }] }), { status_code: 404 });
await assert.rejects(ollama.create({ model: "x", from: "demo", template: "{{ .Prompt }}" }), { status_code: 400 });
console.log("passed");
