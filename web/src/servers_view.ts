// The MCP servers that all sessions share: how they are, what is wrong with them, and signing in where one needs that.

import { get, messageOf, post } from "./api";
import { button, freshId, h, outsideLink, replace, type Child } from "./dom";
import { viewHead } from "./dom";
import { count, visible } from "./words";

interface Server {
  name: string;
  state: string;
  reason?: string | null;
  type?: string | null;
  scope?: string | null;
  version?: string | null;
  tools?: number | string[] | null;
  /** In a fleet, whose servers are each machine's own. */
  machine?: string | null;
  machineId?: string | null;
}

interface Reports {
  servers: Server[];
  problems?: string[] | null;
  /** Where to sign in. */
  url?: string | null;
}

const STATES: Record<string, string> = {
  pending: "not connected",
  connected: "connected",
  failed: "failed",
  "needs-auth": "sign-in needed",
  disabled: "off",
};

export class ServersView {
  readonly element: HTMLElement;
  private readonly body = h("div", { class: "page-body" });
  private readonly problem = h("p", { class: "problem", role: "alert", hidden: true });
  /** What is under way: a server that fails is tried several times. */
  private readonly note = h("p", { class: "hint", role: "status" });
  /** By the query that says which server it is: what is shown of a sign-in that was begun here. */
  private readonly signingIn = new Map<string, HTMLElement>();
  private waiting = false;
  private closed = false;

  constructor() {
    this.element = h("div", { class: "page" }, viewHead("MCP servers"), this.body);
    addEventListener("focus", this.comeBack);
    void this.load();
  }

  close(): void {
    this.closed = true;
    removeEventListener("focus", this.comeBack);
  }

  /** Whoever comes back from the page of a sign-in wants to see what became of it: at once if it is done, else as soon
   * as it is, which the server waits for. */
  private readonly comeBack = (): void => {
    if (!this.waiting) void this.awaitSignIns();
  };

  private async awaitSignIns(): Promise<void> {
    this.waiting = true;
    for (let name = this.nextSignIn(); name !== undefined && !this.closed; name = this.nextSignIn()) {
      await this.load();
      if (!this.signingIn.has(name)) continue;
      if (document.hidden || !(await this.load(`?${name}`))) break;
    }
    this.waiting = false;
  }

  private nextSignIn(): string | undefined {
    return this.signingIn.keys().next().value;
  }

  /** Whether the server answered. */
  private async load(query = ""): Promise<boolean> {
    try {
      const { servers, problems } = await get<Reports>(`/api/mcp-servers${query}`);
      for (const server of servers) if (server.state === "connected") this.signingIn.delete(queryOf(server));
      replace(this.body, this.problem, this.note,
        !servers.length && h("p", { class: "hint" }, "No MCP server is configured. Add one with ", h("code", null, "claude-code-mcp mcp add"), "."),
        h("ul", { class: "cards", role: "list" }, ...servers.map((server) => this.card(server))),
        ...(problems ?? []).map((text) => h("p", { class: "problem" }, visible(text))));
      return true;
    } catch (error) {
      replace(this.body, h("p", { class: "problem", role: "alert" }, messageOf(error)));
      return false;
    }
  }

  private async act(server: Server, action: string, more: { redirect?: string } = {}): Promise<Reports | null> {
    this.problem.hidden = true;
    this.note.textContent = `Waiting for ${visible(server.name)}…`;
    let reports: Reports | null = null;
    try {
      const machine = server.machineId ? `?machine=${encodeURIComponent(server.machineId)}` : "";
      reports = await post<Reports>(`/api/mcp-servers/${encodeURIComponent(server.name)}${machine}`, { action, ...more });
    } catch (error) {
      this.problem.textContent = messageOf(error);
      this.problem.hidden = false;
    }
    this.note.textContent = "";
    return reports;
  }

  private async steer(server: Server, action: string): Promise<void> {
    await this.act(server, action);
    await this.load();
  }

  private async signIn(server: Server): Promise<void> {
    const reports = await this.act(server, "authenticate");
    if (reports?.url) this.signingIn.set(queryOf(server), this.signInPart(server, reports.url));
    await this.load();
  }

  private signInPart(server: Server, address: string): HTMLElement {
    const id = freshId("redirect");
    const redirect = h("input", { id, type: "url", autocomplete: "off" });
    const finish = async (): Promise<void> => {
      if (await this.act(server, "authenticate", { redirect: redirect.value.trim() })) this.signingIn.delete(queryOf(server));
      await this.load();
    };
    const link = outsideLink(address, "Open the sign-in page");
    link?.classList.add("button");
    return h("div", { class: "field" }, link ?? h("code", { class: "address" }, visible(address)),
      h("label", { for: id }, "Did it end on a page that cannot be opened? Paste its address:"), redirect,
      h("div", { class: "actions" }, button("Finish the sign-in", () => void finish())));
  }

  private card(server: Server): HTMLElement {
    const name = visible(server.name);
    const tools = Array.isArray(server.tools) ? server.tools.length : server.tools;
    const facts = [server.machine && `on ${server.machine}`, server.type, server.scope, server.version && `version ${server.version}`, tools ? count(tools, "tool") : ""].filter(Boolean).join(" · ");
    return h("li", { class: "card", data: { state: server.state } },
      h("h2", null, name, " ", h("span", { class: "badge" }, STATES[server.state] ?? visible(server.state))),
      h("p", { class: "about" }, visible(facts)),
      server.reason && h("p", { class: "why" }, visible(server.reason)),
      this.signingIn.get(queryOf(server)),
      h("div", { class: "actions" }, ...this.buttons(server, name)));
  }

  private buttons(server: Server, name: string): Child[] {
    const act = (label: string, action: string): HTMLElement =>
      button(label, () => void this.steer(server, action), { aria: { label: `${label} ${name}` } });
    if (server.state === "disabled") return [act("Enable", "enable")];
    const signIn = server.state === "needs-auth" &&
      button("Sign in", () => void this.signIn(server), { class: "allow", aria: { label: `Sign in to ${name}` } });
    return [signIn, act(server.state === "pending" ? "Connect" : "Reconnect", "reconnect"), act("Disable", "disable")];
  }
}

function queryOf(server: Server): string {
  return new URLSearchParams({ waitFor: server.name, ...(server.machineId ? { machine: server.machineId } : {}) }).toString();
}
