// The sign-in: by the one-time ticket of a link, at the provider of the operator, by a token, or by a press alone.

import { ApiError, messageOf, send, signedIn, type SignInWays } from "./api";
import { button, freshId, h } from "./dom";

/** The ticket in the address, which is taken out of it at once: it must be in no history and on no screenshot. */
export function takeTicket(): string | null {
  const found = /^#ticket=([^&]+)$/.exec(location.hash);
  if (found === null) return null;
  history.replaceState(null, "", "/#/");
  return decodeURIComponent(found[1] as string);
}

/** Whether the browser was sent back here from a sign-in elsewhere that has failed. */
export function cameBackInVain(): boolean {
  if (location.hash !== "#sign-in-failed") return false;
  history.replaceState(null, "", "/#/");
  return true;
}

export async function signIn(proof: { ticket?: string; token?: string; replace?: boolean }): Promise<void> {
  const answer = await send<{ csrf: string }>("POST", "/api/sign-in", { ...proof, device: deviceName() });
  signedIn(answer.csrf);
}

/** The page for somebody who is not signed in. */
export function signInView(ways: SignInWays, problem: string, done: () => void): HTMLElement {
  const id = freshId("token");
  const alert = h("p", { class: "problem", role: "alert", hidden: !problem }, problem);
  const token = h("input", { type: "password", id, autocomplete: "current-password", spellcheck: "false",
    on: { keydown: (event) => void (event.key === "Enter" && submit()) } });
  const submit = (): void => {
    void signIn(ways.open ? {} : { token: token.value.trim() }).then(done, (error: unknown) => {
      alert.textContent = error instanceof ApiError && error.status === 429 ? "Too many attempts; wait a moment." : messageOf(error);
      alert.hidden = false;
      token.focus();
    });
  };
  return h("main", { class: "sign-in", id: "main" },
    h("h1", { tabindex: -1 }, "Claude Code"),
    alert,
    ways.provider && h("p", null, button("Sign in with your account", () => location.assign("/sign-in"), { class: "allow" })),
    h("p", null, ways.provider ? "Or run " : "Run ", h("code", null, "claude-code-mcp web"), " where the server runs, and open the link that it prints or scan its code."),
    ways.open
      ? h("p", null, "This server is on your own machine and needs no token.")
      : ways.token && h("p", null, h("label", { for: id }, "Or sign in with a token of this server"), token),
    (ways.open || ways.token) && button("Sign in", submit, { class: "allow" }));
}

/** What the list of sign-ins calls this browser. */
export function deviceName(): string {
  const agent = navigator.userAgent;
  const browser = /Firefox\//.test(agent) ? "Firefox" : /Edg\//.test(agent) ? "Edge" : /Chrome\//.test(agent) ? "Chrome" : /Safari\//.test(agent) ? "Safari" : "a browser";
  const system = /Android/.test(agent) ? "Android" : /iPhone|iPad/.test(agent) ? "iOS" : /Mac OS/.test(agent) ? "macOS" : /Windows/.test(agent) ? "Windows" : /Linux/.test(agent) ? "Linux" : "";
  return system ? `${browser} on ${system}` : browser;
}
