// node transformers_js.mjs FOLDER TEXTS.json VECTORS.json DTYPE: vectors of texts by transformers.js, from local files.
import fs from "node:fs";
import path from "node:path";
import { env, pipeline } from "@huggingface/transformers";

const [folder, texts, vectors, dtype] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = path.dirname(folder) + path.sep;
const extractor = await pipeline("feature-extraction", path.basename(folder), { dtype });
const found = [];
for (const text of JSON.parse(fs.readFileSync(texts, "utf8"))) {
  found.push((await extractor(text, { pooling: "mean", normalize: true })).tolist()[0]);
}
fs.writeFileSync(vectors, JSON.stringify(found));
