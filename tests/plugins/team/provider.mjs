// A certified OpenID provider on loopback, at which everybody is let in at once as the person that the test has named.
// Usage: node provider.mjs PACKAGES PORT RESOURCE CALLBACK, the latter of the console; reads people from standard input, one in a line: a name, and groups.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, port, resource, callback] = process.argv.slice(2);
const found = createRequire(`${packages}/package.json`).resolve("oidc-provider");
const { default: Provider } = await import(pathToFileURL(found).href);

// The provider prints notices, some of them when something is first used: standard output is for the test.
console.info = console.error;

let person = "ann";
const groups = {};
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [{ client_id: "console", client_secret: "a secret of the console", redirect_uris: [callback] }],
  claims: { openid: ["sub"], profile: ["name"], email: ["email"] },
  cookies: { keys: ["a key of a test"] },
  pkce: { required: () => true },
  scopes: ["openid", "offline_access", "claude", "profile", "email"],
  extraTokenClaims: (_, token) => ({ groups: groups[token.accountId] ?? [] }),
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  ttl: { AccessToken: 3600, RefreshToken: 3600, Session: 3600, Interaction: 600, Grant: 3600 },
  features: {
    devInteractions: { enabled: false },
    introspection: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => resource,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, wanted) => ({
        scope: "claude",
        audience: wanted,
        accessTokenFormat: "jwt",
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
});

// Signs in as the person who was named last, and consents to everything.
provider.use(async (context, next) => {
  if (!context.path.startsWith("/interaction/")) return next();
  const { params, session, grantId, prompt } = await provider.interactionDetails(context.req, context.res);
  let result = { login: { accountId: person } };
  if (prompt.name === "consent") {
    const clientId = params.client_id;
    const grant = grantId ? await provider.Grant.find(grantId) : new provider.Grant({ accountId: session.accountId, clientId });
    grant.addOIDCScope((prompt.details.missingOIDCScope ?? []).join(" "));
    for (const [indicator, scopes] of Object.entries(prompt.details.missingResourceScopes ?? {})) {
      grant.addResourceScope(indicator, scopes.join(" "));
    }
    result = { consent: { grantId: await grant.save() } };
  }
  context.respond = false;
  await provider.interactionFinished(context.req, context.res, result, { mergeWithLastSubmission: true });
});

createInterface({ input: process.stdin }).on("line", (line) => {
  const [name, ...those] = line.trim().split(" ");
  person = name;
  groups[name] = those;
  console.log(`now ${person}`);
});
provider.on("server_error", (_, error) => console.error(error));
provider.listen(Number(port), "127.0.0.1", () => console.log("listening"));
