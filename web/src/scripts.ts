// The scripts that the page loads in addition to its own, as the trusted addresses that the browser requires. The page
// loads no others: its Trusted Types policy allows one creator of such addresses, which is this file.

const SCRIPTS = ["/sw.js", "/highlighter.js"] as const;

interface Policy {
  createScriptURL(address: string): string;
}

interface TrustedTypes {
  createPolicy(name: string, rules: { createScriptURL(address: string): string }): Policy;
}

let policy: Policy | null = null;

/** The trusted address of one of these scripts. Throws if the page does not load it. */
export function scriptAddress(address: (typeof SCRIPTS)[number]): string {
  const { trustedTypes } = globalThis as { trustedTypes?: TrustedTypes };
  policy ??= trustedTypes?.createPolicy("claude-code-mcp", { createScriptURL: known }) ?? { createScriptURL: known };
  return policy.createScriptURL(address);
}

function known(address: string): string {
  const found = SCRIPTS.find((script) => script === address);
  if (found === undefined) throw new Error("This page does not load this script.");
  return found;
}
