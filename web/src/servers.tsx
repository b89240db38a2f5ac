// The MCP servers that all sessions share: their states, their problems, and sign-in for servers that require it.

import { useSignal } from "@preact/signals";
import { type VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { get, messageOf, post } from "./api";
import { webAddress } from "./form";
import type { Live } from "./live";
import { Problem, useFreshId } from "./ui";
import { ViewHead } from "./view_head";
import { count, visible } from "./words";

interface Server {
  name: string;
  state: string;
  reason?: string | null;
  type?: string | null;
  scope?: string | null;
  version?: string | null;
  tools?: number | string[] | null;
  /** The machine of the server. In a fleet, each machine has its own servers. */
  machine?: string | null;
  machineId?: string | null;
}

interface Reports {
  servers: Server[];
  problems?: string[] | null;
  /** The address of the sign-in page. */
  url?: string | null;
}

const STATES: Record<string, string> = {
  pending: "not connected",
  connected: "connected",
  failed: "failed",
  "needs-auth": "sign-in needed",
  disabled: "off",
};

export function Servers({ live }: { live: Live }): VNode {
  const reports = useSignal<Reports | null>(null);
  const failure = useSignal("");
  const problem = useSignal("");
  /** The operation in progress. A server that fails is tried several times. */
  const note = useSignal("");
  /** The sign-in pages of sign-ins that were started here, by the query that identifies the server. */
  const signingIn = useSignal<ReadonlyMap<string, string>>(new Map());
  const closed = useRef(false);
  const waiting = useRef(false);

  const end = (key: string): void => {
    const left = new Map(signingIn.peek());
    left.delete(key);
    signingIn.value = left;
  };
  /** Loads the state of the servers. Returns whether the request succeeded. */
  const load = async (query = ""): Promise<boolean> => {
    try {
      const read = await get<Reports>(`/api/mcp-servers${query}`);
      for (const server of read.servers) if (server.state === "connected") end(queryOf(server));
      reports.value = read;
      failure.value = "";
      return true;
    } catch (error) {
      failure.value = messageOf(error);
      return false;
    }
  };
  const act = async (server: Server, action: string, more: { redirect?: string } = {}): Promise<Reports | null> => {
    problem.value = "";
    note.value = `Waiting for ${visible(server.name)}…`;
    try {
      const machine = server.machineId ? `?machine=${encodeURIComponent(server.machineId)}` : "";
      return await post<Reports>(`/api/mcp-servers/${encodeURIComponent(server.name)}${machine}`, { action, ...more });
    } catch (error) {
      problem.value = messageOf(error);
      return null;
    } finally {
      note.value = "";
      await load();
    }
  };
  const signIn = async (server: Server): Promise<void> => {
    const reply = await act(server, "authenticate");
    if (reply?.url) signingIn.value = new Map([...signingIn.peek(), [queryOf(server), reply.url]]);
  };
  const finish = async (server: Server, redirect: string): Promise<void> => {
    if (await act(server, "authenticate", { redirect })) end(queryOf(server));
  };
  useEffect(() => {
    /** Shows the result of a sign-in when the user returns from its page: at once if it is complete, otherwise as
     * soon as it is. The server waits for that. */
    const onReturn = async (): Promise<void> => {
      if (waiting.current) return;
      waiting.current = true;
      for (;;) {
        const key = signingIn.peek().keys().next().value;
        if (key === undefined || closed.current) break;
        await load();
        if (!signingIn.peek().has(key)) continue;
        if (document.hidden || !(await load(`?${key}`))) break;
      }
      waiting.current = false;
    };
    const listen = (): void => void onReturn();
    addEventListener("focus", listen);
    void load();
    return () => {
      closed.current = true;
      removeEventListener("focus", listen);
    };
  }, []);
  const all = reports.value?.servers ?? [];
  return (
    <div class="page">
      <ViewHead title="MCP servers" live={live} />
      <div class="page-body">
        <Problem>{failure.value}</Problem>
        <Problem>{problem.value}</Problem>
        <p class="hint" role="status">{note.value}</p>
        {reports.value !== null && !all.length && <p class="hint">No MCP server is configured. Add one with <code>claude-code-mcp mcp add</code>.</p>}
        <ul class="cards" role="list">
          {all.map((server) => (
            <Card key={queryOf(server)} server={server} address={signingIn.value.get(queryOf(server))} act={(action) => void act(server, action)}
              signIn={() => void signIn(server)} finish={(redirect) => void finish(server, redirect)} />
          ))}
        </ul>
        {(reports.value?.problems ?? []).map((text) => <p key={text} class="problem">{visible(text)}</p>)}
      </div>
    </div>
  );
}

function Card({ server, address, act, signIn, finish }: {
  server: Server; address: string | undefined; act(action: string): void; signIn(): void; finish(redirect: string): void;
}): VNode {
  const name = visible(server.name);
  const tools = Array.isArray(server.tools) ? server.tools.length : server.tools;
  const facts = [server.machine && `on ${server.machine}`, server.type, server.scope, server.version && `version ${server.version}`, tools ? count(tools, "tool") : ""].filter(Boolean).join(" · ");
  const button = (label: string, action: string): VNode => <button type="button" aria-label={`${label} ${name}`} onClick={() => act(action)}>{label}</button>;
  return (
    <li class="card" data-state={server.state}>
      <h2>{name} <span class="badge">{STATES[server.state] ?? visible(server.state)}</span></h2>
      <p class="about">{visible(facts)}</p>
      {server.reason && <p class="why">{visible(server.reason)}</p>}
      {address !== undefined && <SignIn address={address} finish={finish} />}
      <div class="actions">
        {server.state === "disabled" ? button("Enable", "enable") : (
          <>
            {server.state === "needs-auth" && <button type="button" class="allow" aria-label={`Sign in to ${name}`} onClick={signIn}>Sign in</button>}
            {button(server.state === "pending" ? "Connect" : "Reconnect", "reconnect")}
            {button("Disable", "disable")}
          </>
        )}
      </div>
    </li>
  );
}

function SignIn({ address, finish }: { address: string; finish(redirect: string): void }): VNode {
  const id = useFreshId();
  const redirect = useSignal("");
  const url = webAddress(address);
  return (
    <div class="field">
      {url === null ? <code class="address">{visible(address)}</code>
        : <a class="button" href={url.href} title={url.href} target="_blank" rel="noopener noreferrer nofollow">Open the sign-in page</a>}
      <label for={id}>If the browser ends on a page that cannot be opened, paste that page's address:</label>
      <input id={id} type="url" autocomplete="off" value={redirect.value} onInput={(event) => (redirect.value = event.currentTarget.value)} />
      <div class="actions"><button type="button" onClick={() => finish(redirect.value.trim())}>Finish the sign-in</button></div>
    </div>
  );
}

function queryOf(server: Server): string {
  return new URLSearchParams({ waitFor: server.name, ...(server.machineId ? { machine: server.machineId } : {}) }).toString();
}
