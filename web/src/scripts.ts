// The scripts that the page loads beside itself, in the form that the browser wants. There are no others: the page's
// policy has one maker of such addresses, and this is it.

const SCRIPTS = ["/sw.js", "/highlighter.js"] as const;

interface Policy {
  createScriptURL(address: string): string;
}

interface TrustedTypes {
  createPolicy(name: string, rules: { createScriptURL(address: string): string }): Policy;
}

let policy: Policy | null = null;

/** The address of one of them; throws if it is none. */
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
