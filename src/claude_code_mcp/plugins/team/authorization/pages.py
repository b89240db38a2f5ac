"""The pages of the embedded authorization server.

A client's description of itself is shown as text: everything inserted is escaped, and the policy of each page allows
only its own script and style, by hash. Pages must not be framed or cached. The script only asks for a passkey; denying
a client works without it.
"""

import base64
import hashlib
from collections.abc import Mapping
from html import escape

from starlette.responses import HTMLResponse

from ....server.web_answers import HEADERS

_STYLE = """
:root { color-scheme: light dark; --page: light-dark(#f7f6f3, #151514); --surface: light-dark(#ffffff, #1e1e1c);
  --line: light-dark(#dddad3, #3a3935); --text: light-dark(#1e1d1b, #eceae5); --muted: light-dark(#625f58, #aba79e);
  --accent: light-dark(#24569f, #9cc0f7); --on-accent: light-dark(#ffffff, #0e1b2e);
  --ask: light-dark(#7a4b00, #f3cb80); --ask-soft: light-dark(#fff3d9, #2f2714); --bad: light-dark(#a8231b, #f5a29b); }
*, *::before, *::after { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; padding: 1rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { width: 100%; max-width: 30rem; padding: 1.5rem; background: var(--surface); border: 1px solid var(--line);
  border-radius: 14px; }
h1 { margin: 0 0 .75rem; font-size: 1.25rem; line-height: 1.3; overflow-wrap: anywhere; }
p { margin: .75rem 0; }
dl { margin: 1rem 0; display: grid; gap: .75rem; }
dt { font-size: .875rem; color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: .875em ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.caution { padding: .5rem .75rem; border-radius: 8px; background: var(--ask-soft); color: var(--ask); }
.problem { color: var(--bad); }
.problem:empty { display: none; }
.actions { display: flex; flex-wrap: wrap; gap: .5rem; margin-top: 1.25rem; }
button { min-height: 44px; padding: .5rem 1rem; border: 1px solid var(--line); border-radius: 10px; font: inherit;
  font-weight: 550; color: inherit; background: var(--surface); cursor: pointer; }
button.allow { background: var(--accent); border-color: var(--accent); color: var(--on-accent); }
button:disabled { opacity: .55; cursor: default; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
a { color: var(--accent); }
"""

_SCRIPT = """
"use strict";
const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)))
  .replace(/\\+/g, "-").replace(/\\//g, "_").replace(/=+$/, "");
const form = document.querySelector("form");
const note = document.querySelector("[role=status]");
if (note) note.textContent = "";
const invited = document.querySelector("input[name=invite][data-from-link]");

async function made(options) {
  options.challenge = bytes(options.challenge);
  options.user.id = bytes(options.user.id);
  for (const known of options.excludeCredentials) known.id = bytes(known.id);
  const { id, type, rawId, response } = await navigator.credentials.create({ publicKey: options });
  return { id, type, rawId: text(rawId), response: {
    clientDataJSON: text(response.clientDataJSON), attestationObject: text(response.attestationObject) } };
}

async function signed(options) {
  options.challenge = bytes(options.challenge);
  options.allowCredentials = [];
  const { id, type, rawId, response } = await navigator.credentials.get({ publicKey: options });
  return { id, type, rawId: text(rawId), response: {
    clientDataJSON: text(response.clientDataJSON), authenticatorData: text(response.authenticatorData),
    signature: text(response.signature), userHandle: response.userHandle ? text(response.userHandle) : null } };
}

if (form && form.dataset.options) {
  form.addEventListener("submit", async (event) => {
    if (!event.submitter || event.submitter.value !== "allow") return;
    event.preventDefault();
    note.textContent = "";
    event.submitter.disabled = true;
    try {
      if (!window.PublicKeyCredential) throw new Error("this browser does not support passkeys");
      const options = JSON.parse(form.dataset.options);
      form.elements.credential.value = JSON.stringify(await (options.user ? made(options) : signed(options)));
      form.elements.decision.value = "allow";
      form.submit();
    } catch (error) {
      note.textContent = `Something went wrong: ${error.message}`;
      event.submitter.disabled = false;
    }
  });
}
// The secret of a link is behind its #, so that it is in no log. It is taken out of the history too.
if (invited && location.hash.length > 1) {
  invited.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  form.submit();
}
"""


_WITHOUT_SCRIPT = '<p class="problem" role="status">Passkeys need JavaScript, which is switched off here.</p>'
"""The script removes it as soon as it runs."""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_SCRIPT_HASH, _STYLE_HASH = _hash(_SCRIPT), _hash(_STYLE)


def page(title: str, body: str, status: int = 200, sends_to: str = "") -> HTMLResponse:
    """A page; `body` is markup. Its form may lead to this server, and on to `sends_to`."""
    html = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n<script>{_SCRIPT}</script>\n</html>\n"
    )
    policy = (
        f"default-src 'none'; script-src {_SCRIPT_HASH}; style-src {_STYLE_HASH}; base-uri 'none'; "
        # Browsers also apply this to the redirect after a form: a decision leads to the client's address.
        f"form-action 'self' {sends_to}".rstrip()
        + "; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {
        **HEADERS,
        # With `no-referrer`, browsers would send our own forms with the origin `null`.
        "Referrer-Policy": "same-origin",
        # A client that opened this page in a separate window must be able to access the window after the redirect.
        "Cross-Origin-Opener-Policy": "unsafe-none",
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
    }
    return HTMLResponse(html, status, headers)


def message(title: str, text: str, status: int = 200) -> HTMLResponse:
    return page(title, f"<p>{escape(text)}</p>", status)


def refused_page(location: str) -> HTMLResponse:
    """Says that a client requested something unavailable; the person decides whether to follow the link that reports
    this to the client."""
    body = (
        "<p>It asks for something that this server does not offer.</p>\n"
        f'<p><a href="{escape(location)}" rel="noreferrer">Go back to it</a>, if you know this address: '
        f"<code>{escape(location.partition('?')[0])}</code></p>"
    )
    return page("This client cannot sign in", body, 400)


def _form(action: str, hidden: Mapping[str, str], options: str, buttons: str) -> str:
    fields = "\n".join(f'<input type="hidden" name="{name}" value="{escape(value)}">' for name, value in hidden.items())
    return (
        f'<form method="post" action="{action}" data-options="{escape(options)}" autocomplete="off">\n{fields}\n'
        '<input type="hidden" name="credential" value="">\n<input type="hidden" name="decision" value="">\n'
        f'{_WITHOUT_SCRIPT}\n<div class="actions">\n{buttons}\n</div>\n</form>'
    )


def consent_page(
    action: str, name: str | None, client_id: str, redirect: str, sends_to: str, hidden: Mapping[str, str], options: str
) -> HTMLResponse:
    """Asks whether a client may act in the signer's name."""
    shown = name or "an unnamed client"
    facts = (
        ("Name (stated by the client)", escape(shown)),
        ("Client id", f"<code>{escape(client_id)}</code>"),
        ("Redirects to", f"<code>{escape(redirect)}</code>"),
        ("It may", "<code>claude-code</code>: run Claude Code here as you, see and answer your sessions"),
    )
    rows = "\n".join(f"<div><dt>{term}</dt><dd>{detail}</dd></div>" for term, detail in facts)
    body = (
        f"<dl>\n{rows}\n</dl>\n"
        '<p class="caution">Any client can call itself anything. Allow this only if you just started it.</p>\n'
        + _form(
            action,
            hidden,
            options,
            '<button class="allow" name="choice" value="allow">Allow with your passkey</button>\n'
            '<button name="choice" value="deny">Deny</button>',
        )
    )
    return page(f"Allow {shown}?", body, sends_to=sends_to)


def sign_in_page(action: str, hidden: Mapping[str, str], options: str) -> HTMLResponse:
    button = '<button class="allow" name="choice" value="allow">Sign in with your passkey</button>'
    return page("Sign in to the console", _form(action, hidden, options, button))


def invite_page(action: str) -> HTMLResponse:
    """The page behind an invitation link. Viewing it uses nothing up, because chat previews open it."""
    body = (
        "<p>You are invited to use Claude Code here.</p>\n"
        f'<form method="post" action="{action}" autocomplete="off">\n'
        f'<input type="hidden" name="invite" data-from-link value="">\n</form>\n{_WITHOUT_SCRIPT}'
    )
    return page("Your invitation", body)


def passkey_page(action: str, name: str, hidden: Mapping[str, str], options: str) -> HTMLResponse:
    body = (
        "<p>A passkey replaces a password: your device stores it and asks for your fingerprint, your face or its "
        "PIN.</p>\n"
        + _form(action, hidden, options, '<button class="allow" name="choice" value="allow">Create a passkey</button>')
    )
    return page(f"Welcome, {name}", body)


def welcome_page(name: str, resource: str, console: str | None) -> HTMLResponse:
    more = f'<p><a href="{escape(console)}">Open the console</a></p>' if console is not None else ""
    body = (
        "<p>Your passkey is ready. Add this address to your MCP client; it opens a browser in which you sign in:</p>\n"
        f"<p><code>{escape(resource)}</code></p>\n{more}"
    )
    return page(f"All set, {name}", body)
