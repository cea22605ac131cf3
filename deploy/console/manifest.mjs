// Writes page/sources.json: the SHA-256 of each source of the page and of each file that was built
// of them. A test holds it against what is checked in, so that neither changes without the other.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";

const here = import.meta.dirname;
const page = join(here, "../../serving/server/console/page");
const LIBRARIES = ["preact", "@preact/signals", "@preact/signals-core", "uplot", "@fontsource-variable/inter"];

function* files(folder) {
  for (const name of readdirSync(folder).sort()) {
    const path = join(folder, name);
    if (name === "node_modules" || name === "sources.json") continue;
    if (statSync(path).isDirectory()) yield* files(path);
    else yield path;
  }
}

function hashes(folder) {
  const named = [...files(folder)].map((path) => [
    relative(folder, path).replaceAll("\\", "/"),
    createHash("sha256").update(readFileSync(path)).digest("hex"),
  ]);
  return Object.fromEntries(named.sort(([a], [b]) => (a < b ? -1 : 1)));
}

// What the page carries of others comes with their licences.
mkdirSync(join(page, "licences"), { recursive: true });
for (const library of LIBRARIES) {
  const name = library.replace(/^@/, "").replaceAll("/", "-");
  copyFileSync(join(here, "node_modules", library, "LICENSE"), join(page, "licences", `${name}.txt`));
}
writeFileSync(join(page, "sources.json"), JSON.stringify({ sources: hashes(here), page: hashes(page) }, null, 1) + "\n");
