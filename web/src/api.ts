// Requests to the server that served this page. A sign-in consists of a cookie that scripts cannot read and a second value
// that only this page's origin has; every request needs both.

const KEY = "claude-code-mcp.csrf";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly body: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

const OFFLINE = "The server cannot be reached.";
const OFFLINE_ACT = `${OFFLINE} It is not known whether the request was carried out; check when the connection is back.`;

/** Called when the server answers that the user is not signed in. */
let whenSignedOut: (ways: SignInWays) => void = () => undefined;

export interface SignInWays {
  token: boolean;
  open: boolean;
  provider: boolean;
}

export function onSignedOut(act: (ways: SignInWays) => void): void {
  whenSignedOut = act;
}

export function signedIn(csrf: string): void {
  localStorage.setItem(KEY, csrf);
}

export function forget(): void {
  localStorage.removeItem(KEY);
}

export function authorization(): Record<string, string> {
  return { "X-CSRF-Token": localStorage.getItem(KEY) ?? "" };
}

export function get<Answer>(path: string): Promise<Answer> {
  return send<Answer>("GET", path);
}

export function post<Answer>(path: string, body: unknown = {}): Promise<Answer> {
  return send<Answer>("POST", path, body);
}

export async function send<Answer>(method: string, path: string, body?: unknown): Promise<Answer> {
  const headers: Record<string, string> = { Accept: "application/json", ...authorization() };
  const given: RequestInit = { method, headers, cache: "no-store" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    given.body = JSON.stringify(body);
  }
  let response: Response;
  try {
    response = await fetch(path, given);
  } catch {
    throw new ApiError(0, "OFFLINE", method === "GET" ? OFFLINE : OFFLINE_ACT);
  }
  const answer = (await response.json().catch(() => ({}))) as Record<string, unknown>;
  if (response.ok) return answer as Answer;
  const error = (answer["error"] ?? {}) as { code?: string; message?: string };
  const code = error.code ?? `HTTP_${response.status}`;
  if (code === "SIGNED_OUT") {
    forget();
    whenSignedOut((answer["signIn"] as SignInWays | undefined) ?? { token: true, open: false, provider: false });
  }
  throw new ApiError(response.status, code, error.message ?? `The server answered ${response.status}.`, answer);
}

/** The message of a thrown value, for the user. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export function sessionPath(id: string, ...more: string[]): string {
  return ["/api/sessions", encodeURIComponent(id), ...more].join("/");
}
