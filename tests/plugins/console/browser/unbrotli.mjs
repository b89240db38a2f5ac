// Unpacks every .br file of a directory into another: `node unbrotli.mjs FROM TO`.
import { createReadStream, createWriteStream, readdirSync } from "node:fs";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";

const [from, to] = process.argv.slice(2);
for (const name of readdirSync(from).filter((name) => name.endsWith(".br"))) {
  const target = createWriteStream(join(to, name.slice(0, -".br".length)));
  await pipeline(createReadStream(join(from, name)), createBrotliDecompress(), target);
}
