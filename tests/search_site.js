// Ask the search of a built site as its page does, and print where each answer leads:
// node tests/search_site.js SITE QUERY ...
//
// The worker of the page runs here as it is. What it is told has the form of the page's own messages.
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const [SET_UP, READY, QUERY, RESULT] = [0, 1, 2, 3];
const [site, ...queries] = process.argv.slice(2);
const filter = {
  input: { type: "operator", data: { operator: "and", operands: [] } },
  aggregation: { input: [{ type: "term", data: { field: "tags" } }] },
};
const answers = [];

globalThis.self = globalThis;
globalThis.postMessage = (answer) => answers.push(answer);

async function ask(message) {
  const before = answers.length;
  // a worker gets a copy of what it is sent, and changes it
  globalThis.onmessage({ data: structuredClone(message) });
  while (answers.length === before) await new Promise((resume) => setTimeout(resume, 0));
  return answers[before];
}

async function main() {
  const page = fs.readFileSync(path.join(site, "index.html"), "utf8");
  const settings = JSON.parse(page.match(/id="?__config"?[^>]*>(.*?)<\/script>/s)[1]);
  (0, eval)(fs.readFileSync(path.join(site, settings.search), "utf8"));
  const index = JSON.parse(fs.readFileSync(path.join(site, "search.json"), "utf8"));
  const ready = await ask({ type: SET_UP, data: index });
  if (ready.type !== READY) throw new Error("the search takes no index");
  const found = {};
  for (const input of queries) {
    const answer = await ask({ type: QUERY, data: { input, filter } });
    if (answer.type !== RESULT) throw new Error(`the search takes no query: ${input}`);
    found[input] = answer.data.items.map((item) => index.items[item.id].location);
  }
  console.log(JSON.stringify(found));
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
