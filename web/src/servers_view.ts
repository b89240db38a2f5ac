// The MCP servers that all sessions share, and how they are.

import { get, messageOf, post } from "./api";
import { button, h, replace } from "./dom";
import { viewHead } from "./new_view";
import { count } from "./words";

interface Server {
  name: string;
  state: string;
  reason?: string | null;
  type?: string | null;
  scope?: string | null;
  version?: string | null;
  tools?: number | string[] | null;
}

export function serversView(): HTMLElement {
  const body = h("div", { class: "page-body" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const act = async (name: string, action: string): Promise<void> => {
    problem.hidden = true;
    try {
      await post(`/api/mcp-servers/${encodeURIComponent(name)}`, { action });
    } catch (error) {
      problem.textContent = messageOf(error);
      problem.hidden = false;
    }
    await load();
  };
  const load = async (): Promise<void> => {
    try {
      const { servers, problems } = await get<{ servers: Server[]; problems?: string[] }>("/api/mcp-servers");
      replace(body, problem,
        !servers.length && h("p", { class: "hint" }, "No MCP server is configured. Add one with ", h("code", null, "claude-code-mcp mcp add"), "."),
        h("ul", { class: "cards", role: "list" }, ...servers.map((server) => card(server, act))),
        ...(problems ?? []).map((text) => h("p", { class: "problem" }, text)));
    } catch (error) {
      replace(body, h("p", { class: "problem" }, messageOf(error)));
    }
  };
  void load();
  return h("div", { class: "page" }, viewHead("MCP servers"), body);
}

function card(server: Server, act: (name: string, action: string) => Promise<void>): HTMLElement {
  const tools = Array.isArray(server.tools) ? server.tools.length : server.tools;
  const facts = [server.type, server.scope, server.version, tools ? count(tools, "tool") : ""].filter(Boolean).join(" · ");
  const off = server.state === "disabled";
  return h("li", { class: "card", data: { state: server.state } },
    h("h2", null, server.name, " ", h("span", { class: "badge" }, server.state)),
    h("p", { class: "about" }, facts),
    server.reason && h("p", { class: "why" }, server.reason),
    h("div", { class: "actions" },
      !off && button("Reconnect", () => void act(server.name, "reconnect"), { aria: { label: `Reconnect ${server.name}` } }),
      button(off ? "Enable" : "Disable", () => void act(server.name, off ? "enable" : "disable"), { aria: { label: `${off ? "Enable" : "Disable"} ${server.name}` } })));
}
