// Sign-in: with the one-time ticket of a link, at the operator's provider, with a token, or with a button alone.

import { useSignal } from "@preact/signals";
import { type ComponentChildren, type VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { ApiError, messageOf, send, signedIn, type SignInWays } from "./api";
import { Problem, useFreshId } from "./ui";

/** Returns the ticket in the address and removes it at once: it must not appear in the history or on a screenshot. */
export function takeTicket(): string | null {
  const found = /^#ticket=([^&]+)$/.exec(location.hash);
  if (found === null) return null;
  history.replaceState(null, "", "/#/");
  return decodeURIComponent(found[1] as string);
}

/** Whether the browser was sent back here after a failed sign-in at the provider. */
export function signInFailed(): boolean {
  if (location.hash !== "#sign-in-failed") return false;
  history.replaceState(null, "", "/#/");
  return true;
}

export async function signIn(proof: { ticket?: string; token?: string; replace?: boolean }): Promise<void> {
  const answer = await send<{ csrf: string }>("POST", "/api/sign-in", { ...proof, device: deviceName() });
  signedIn(answer.csrf);
}

function StartPage({ children }: { children: ComponentChildren }): VNode {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), []);
  return <main class="sign-in" id="main"><h1 tabIndex={-1} ref={heading}>Claude Code</h1>{children}</main>;
}

/** The page for a user who is not signed in. */
export function SignIn({ ways, problem, done }: { ways: SignInWays; problem: string; done(): void }): VNode {
  const id = useFreshId();
  const token = useRef<HTMLInputElement>(null);
  const why = useSignal(problem);
  const submit = (): void => {
    void signIn(ways.open ? {} : { token: token.current?.value.trim() ?? "" }).then(done, (error: unknown) => {
      why.value = error instanceof ApiError && error.status === 429 ? "Too many attempts; wait a moment." : messageOf(error);
      token.current?.focus();
    });
  };
  return (
    <StartPage>
      <Problem>{why.value}</Problem>
      {ways.provider && <p><button type="button" class="allow" onClick={() => location.assign("/sign-in")}>Sign in with your account</button></p>}
      <p>{ways.provider ? "Or run " : "Run "}<code>claude-code-mcp web</code> where the server runs, and open the link that it prints or scan its code.</p>
      {ways.open ? <p>This server is on your own machine and needs no token.</p> : ways.token && (
        <p>
          <label for={id}>Or sign in with a token of this server</label>
          <input type="password" id={id} ref={token} autocomplete="current-password" spellcheck={false} onKeyDown={(event) => event.key === "Enter" && submit()} />
        </p>
      )}
      {(ways.open || ways.token) && <button type="button" class="allow" onClick={submit}>Sign in</button>}
    </StartPage>
  );
}

/** Asks before a link for another account replaces the sign-in: its sender may want the user to use that account. */
export function AccountChoice({ why, stay, change }: { why: string; stay(): void; change(): void }): VNode {
  return (
    <StartPage>
      <p role="alert">{why}</p>
      <div class="actions">
        <button type="button" class="allow" onClick={stay}>Stay signed in</button>
        <button type="button" onClick={change}>Switch accounts</button>
      </div>
    </StartPage>
  );
}

/** The page that appears if the server did not say who the user is. */
export function NoAnswer({ why, again }: { why: string; again(): void }): VNode {
  return <StartPage><Problem>{why}</Problem><button type="button" class="allow" onClick={again}>Try again</button></StartPage>;
}

/** The name of this browser in the list of sign-ins. */
export function deviceName(): string {
  const agent = navigator.userAgent;
  const browser = /Firefox\//.test(agent) ? "Firefox" : /Edg\//.test(agent) ? "Edge" : /Chrome\//.test(agent) ? "Chrome" : /Safari\//.test(agent) ? "Safari" : "a browser";
  const system = /Android/.test(agent) ? "Android" : /iPhone|iPad/.test(agent) ? "iOS" : /Mac OS/.test(agent) ? "macOS" : /Windows/.test(agent) ? "Windows" : /Linux/.test(agent) ? "Linux" : "";
  return system ? `${browser} on ${system}` : browser;
}
