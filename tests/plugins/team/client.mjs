// A client of the TypeScript SDK that knows nothing but the address of a server, and signs in by itself.
// Usage: node client.mjs PACKAGES URL ERA CALLBACK [ask]; prints what the tool `claude_list_sessions` answers. With `ask`
// it prints `open ADDRESS` in place of a browser, and reads from standard input where that was sent in the end.
import { createRequire } from "node:module";
import { createInterface } from "node:readline/promises";
import { pathToFileURL } from "node:url";

const [packages, url, era, callback, ask] = process.argv.slice(2);
const find = createRequire(`${packages}/package.json`).resolve;
const load = (name) => import(pathToFileURL(find(name)).href);
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = await load("@modelcontextprotocol/client");

const kept = {};
let code;

// What a browser does: follows every redirection, with its cookies, until it is sent back to the client.
async function browse(address) {
  if (ask) {
    console.log(`open ${address.href}`);
    const lines = createInterface({ input: process.stdin });
    const sent = await lines.question("");
    lines.close();
    return new URL(sent).searchParams;
  }
  const cookies = new Map();
  for (let step = 0; step < 12; step++) {
    const headers = { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join("; ") };
    const answer = await fetch(address, { redirect: "manual", headers });
    for (const cookie of answer.headers.getSetCookie()) {
      const [pair] = cookie.split(";");
      cookies.set(pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1));
    }
    address = new URL(answer.headers.get("location"), address);
    if (address.href.startsWith(callback)) return address.searchParams;
  }
  throw new Error("the sign-in does not end");
}

const authProvider = {
  redirectUrl: callback,
  clientMetadata: { redirect_uris: [callback], client_name: "A TypeScript client", token_endpoint_auth_method: "none" },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => void (kept.tokens = tokens),
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  redirectToAuthorization: async (address) => void (code = await browse(address)),
};

const options = era === "modern" ? { versionNegotiation: { mode: { pin: "2026-07-28" } } } : {};
const connect = async () => {
  const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
  const client = new Client({ name: "a-foreign-client", version: "1.0.0" }, options);
  try {
    await client.connect(transport);
    return client;
  } catch (error) {
    if (!(error instanceof UnauthorizedError) || code === undefined) throw error;
    await transport.finishAuth(code);
    return undefined;
  }
};
const client = (await connect()) ?? (await connect());
const listed = await client.callTool({ name: "claude_list_sessions", arguments: {} });
console.log(JSON.stringify(listed.structuredContent));
await client.close();
