// The MCP client that embeds this app: JSON-RPC over postMessage, with the parent window only.

const PROTOCOL = "2026-01-26";

export interface ToolResult {
  isError?: boolean;
  content?: { type: string; text?: string }[];
  structuredContent?: Record<string, unknown>;
}

interface HostContext {
  theme?: "light" | "dark";
}

interface Message {
  jsonrpc: "2.0";
  id?: number | string;
  method?: string;
  params?: Record<string, unknown>;
  result?: unknown;
  error?: { message?: string };
}

export interface HostHandlers {
  /** Receives the arguments of the tool call that opened this app. */
  input(given: Record<string, unknown>): void;
  result(result: ToolResult): void;
  /** The host is about to remove the app. */
  teardown(): void;
}

export class Host {
  private readonly pending = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>();
  private number = 0;

  constructor(private readonly handlers: HostHandlers) {
    addEventListener("message", (event) => {
      if (event.source === parent) this.receive(event.data as Message);
    });
  }

  async connect(version: string): Promise<void> {
    const answer = await this.request<{ hostContext?: HostContext }>("ui/initialize", {
      protocolVersion: PROTOCOL,
      appInfo: { name: "claude-code-mcp", version },
      appCapabilities: { availableDisplayModes: ["inline", "fullscreen"] },
    });
    applyContext(answer.hostContext);
    this.notify("ui/notifications/initialized", {});
    this.reportSize();
  }

  callTool(name: string, given: Record<string, unknown>): Promise<ToolResult> {
    return this.request<ToolResult>("tools/call", { name, arguments: given });
  }

  openLink(url: string): void {
    void this.request("ui/open-link", { url }).catch(() => undefined);
  }

  private request<Answer>(method: string, params: object): Promise<Answer> {
    const id = (this.number += 1);
    return new Promise<Answer>((resolve, reject) => {
      this.pending.set(id, { resolve: resolve as (value: unknown) => void, reject });
      this.post({ jsonrpc: "2.0", id, method, params: params as Record<string, unknown> });
    });
  }

  private notify(method: string, params: Record<string, unknown>): void {
    this.post({ jsonrpc: "2.0", method, params });
  }

  private post(message: Message): void {
    // A sandboxed page does not know the origin of its host. The messages contain nothing that the host must not see.
    parent.postMessage(message, "*");
  }

  private receive(message: Message | null): void {
    if (message?.jsonrpc !== "2.0") return;
    if (message.method === undefined) return this.answered(message);
    const params = message.params ?? {};
    switch (message.method) {
      case "ui/notifications/tool-input":
        return this.handlers.input((params["arguments"] as Record<string, unknown> | undefined) ?? {});
      case "ui/notifications/tool-result":
        return this.handlers.result(params as ToolResult);
      case "ui/notifications/host-context-changed":
        return applyContext(params as HostContext);
      case "ui/resource-teardown":
        this.handlers.teardown();
        if (message.id !== undefined) this.post({ jsonrpc: "2.0", id: message.id, result: {} });
        return;
      case "ping":
        if (message.id !== undefined) this.post({ jsonrpc: "2.0", id: message.id, result: {} });
    }
  }

  private answered(message: Message): void {
    const waiting = this.pending.get(Number(message.id));
    this.pending.delete(Number(message.id));
    if (message.error !== undefined) waiting?.reject(new Error(message.error.message ?? "The client refused."));
    else waiting?.resolve(message.result);
  }

  /** Reports the height of the content to the host whenever it changes. */
  private reportSize(): void {
    let last = 0;
    new ResizeObserver(() => {
      const height = Math.ceil(document.body.getBoundingClientRect().height);
      if (height === last) return;
      last = height;
      this.notify("ui/notifications/size-changed", { width: document.documentElement.clientWidth, height });
    }).observe(document.body);
  }
}

function applyContext(context: HostContext | undefined): void {
  if (context?.theme === "light" || context?.theme === "dark") document.documentElement.dataset["theme"] = context.theme;
}
