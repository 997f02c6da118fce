// Finds the nearest sentences as one types: transformers.js embeds the query, and the vectors of the sentences are a file.
import { AutoModel, AutoTokenizer, Tensor, env } from "./transformers.min.js";

const SHOWN = 10;
const LEAST_COSINE = 0.999; // between a vector of this browser and the one in the file
const [query, status, results] = ["query", "status", "results"].map((id) => document.getElementById(id));

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "./";
env.useBrowserCache = false; // the browser's own cache of files does
env.useWasmCache = false;
env.backends.onnx.wasm.wasmPaths = new URL("./", import.meta.url).href;
env.backends.onnx.wasm.numThreads = 1; // more need headers that servers of static files do not send

let facts, vectors, tokenizer, model;

async function fetched(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response;
}

function unit(vector) {
  const norm = Math.hypot(...vector);
  return norm > 0 ? vector.map((value) => value / norm) : null;
}

/** The cosine of a unit vector with a sentence's vector. */
function cosine(vector, sentence) {
  const start = sentence * vector.length;
  let sum = 0;
  for (let index = 0; index < vector.length; index++) sum += vector[index] * vectors[start + index];
  return sum;
}

/** The vector of a text at unit length; null if no word of it is known. */
async function vectorOf(text) {
  let ids = tokenizer.encode(text);
  if (ids.length > facts.max_length) {
    const end = ids.length - facts.end_tokens;
    ids = [...ids.slice(0, facts.max_length - facts.end_tokens), ...ids.slice(end)];
  }
  if (!ids.length) return null;
  const tensor = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  const found = await model({ input_ids: tensor(ids), attention_mask: tensor(ids.map(() => 1)) });
  return unit(found.sentence_embedding.data);
}

function say(text, isFault = false) {
  status.textContent = text;
  status.className = isFault ? "fault" : "";
}

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function row(sentence, score) {
  const bar = element("div", "bar");
  bar.append(element("div", ""));
  bar.firstChild.style.width = `${100 * Math.max(0, Math.min(1, score))}%`;
  bar.setAttribute("aria-hidden", "true");
  const made = element("li", "");
  made.append(element("span", "", sentence), element("span", "score", score.toFixed(3)), bar);
  return made;
}

async function search(text) {
  const start = performance.now();
  const vector = text.trim() ? await vectorOf(facts.prompts.query + text) : null;
  const between = performance.now();
  const scores = vector ? facts.sentences.map((_, index) => cosine(vector, index)) : [];
  const nearest = [...scores.keys()].sort((one, other) => scores[other] - scores[one]).slice(0, SHOWN);
  const end = performance.now();
  results.replaceChildren(...nearest.map((index) => row(facts.sentences[index], scores[index])));
  results.dataset.query = text;
  const ms = (time) => `${time.toFixed(time < 10 ? 1 : 0)} ms`;
  if (vector) say(`${ms(between - start)} for the vector, ${ms(end - between)} for ${scores.length.toLocaleString("en")} cosines`);
  else say(text.trim() ? "The model knows none of these words." : "");
}

let running = false;
/** Searches for what the box holds, until it holds what was searched for. */
async function update() {
  if (running) return;
  running = true;
  try {
    for (let text; text !== query.value; ) await search((text = query.value));
  } catch (error) {
    say(String(error), true);
  }
  running = false;
}

async function load() {
  say("Loading the model …");
  const inputs = await Promise.all([fetched("demo.json"), fetched("vectors.bin")]);
  facts = await inputs[0].json();
  vectors = new Float32Array(await inputs[1].arrayBuffer());
  tokenizer = await AutoTokenizer.from_pretrained("student");
  model = await AutoModel.from_pretrained("student", { dtype: facts.dtype, device: "wasm" });
  const vector = await vectorOf(facts.prompts.document + facts.sentences[0]);
  const found = vector ? cosine(vector, 0) : 1;
  if (!(found >= LEAST_COSINE)) throw new Error(`this browser computes other vectors (cosine ${found.toFixed(4)})`);
  query.addEventListener("input", update);
  query.disabled = false;
  query.focus();
  say("Ready.");
}

load().catch((error) => say(`The model does not run here: ${error}`, true));
