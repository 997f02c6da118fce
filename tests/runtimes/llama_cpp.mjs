// node llama_cpp.mjs MODEL.gguf TEXTS.json VECTORS.json: tokens and vectors of texts by llama.cpp.
import fs from "node:fs";
import { getLlama, LlamaLogLevel } from "node-llama-cpp";

const [file, texts, vectors] = process.argv.slice(2);
const llama = await getLlama({ build: "never", gpu: false, logLevel: LlamaLogLevel.error });
const model = await llama.loadModel({ modelPath: file });
// One more than the longest text, which the binding refuses otherwise. Threads wait in a loop, so one is fastest on a busy machine.
const context = await model.createEmbeddingContext({ contextSize: model.trainContextSize + 1, threads: 1 });
const found = [];
for (const text of JSON.parse(fs.readFileSync(texts, "utf8"))) {
  const tokens = model.tokenize(text).slice(0, model.trainContextSize - 2);
  const { vector } = await context.getEmbeddingFor(tokens);
  found.push({ tokens: [model.tokens.bos, ...tokens, model.tokens.sep], vector });
}
fs.writeFileSync(vectors, JSON.stringify(found));
process.exit(0);
