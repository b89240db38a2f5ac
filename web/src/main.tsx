// Signs the user in, then shows the console.

import { signal } from "@preact/signals";
import { render, type VNode } from "preact";
import { ApiError, get, messageOf, onSignedOut, type SignInWays } from "./api";
import { setHighlighter } from "./code_block";
import { Console, START_WORDS } from "./console";
import { openDrafts } from "./drafts";
import { Highlight } from "./highlight";
import { AccountChoice, signInFailed, NoAnswer, SignIn, signIn, takeTicket } from "./sign_in";
import type { Me } from "./types";

/** Null until the server has answered who is signed in. */
const shown = signal<VNode | null>(null);

async function start(problem = ""): Promise<void> {
  let ways: SignInWays = { token: true, open: false, provider: false };
  shown.value = null;
  onSignedOut((offered) => {
    ways = offered;
    if (shown.peek()?.type === Console) void start();
  });
  if (signInFailed()) problem = "Signing in with your account failed or took too long. Try again.";
  const ticket = takeTicket();
  try {
    if (ticket !== null) await signIn({ ticket });
  } catch (error) {
    if (error instanceof ApiError && error.code === "OTHER_PERSON") return choose(ticket as string, error.message);
    problem = error instanceof ApiError && error.code === "SIGN_IN_FAILED"
      ? "This link was already used or has expired. Ask for a new one." : messageOf(error);
  }
  try {
    const me = await get<Me>("/api/me");
    openDrafts(me.principal);
    shown.value = <Console me={me} signedOut={() => void start()} />;
  } catch (error) {
    if (error instanceof ApiError && error.code === "SIGNED_OUT") showStartPage(<SignIn ways={ways} problem={problem} done={() => void start()} />);
    else fail(error instanceof ApiError && error.status === 0 ? `No server responds at this address. ${START_WORDS}` : messageOf(error));
  }
}

/** Asks whether to replace the sign-in of another user, who is signed in here. */
function choose(ticket: string, why: string): void {
  const change = (): void => void signIn({ ticket, replace: true }).then(() => start(), (error: unknown) => start(messageOf(error)));
  showStartPage(<AccountChoice why={why} stay={() => void start()} change={change} />);
}

function fail(why: string): void {
  showStartPage(<NoAnswer why={why} again={() => void start()} />);
  addEventListener("online", () => void start(), { once: true });
}

/** Shows a page in place of the console: sign-in, choice of account or an error. */
function showStartPage(page: VNode): void {
  document.body.dataset["area"] = "sign-in";
  shown.value = page;
}

function Root(): VNode | null {
  return shown.value;
}

addEventListener("hashchange", () => {
  // The user opens a link with a ticket in a tab that already shows the page.
  if (location.hash.startsWith("#ticket=")) void start();
});
setHighlighter(new Highlight().add);
document.body.replaceChildren();
render(<Root />, document.body);
void start();
