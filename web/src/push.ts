// Push notifications on this device, also while the page is closed.

import { post, send } from "./api";
import { scriptAddress } from "./scripts";
import { deviceName } from "./sign_in";

/** Why notifications are unavailable here; null if they are available. */
export function pushProblem(key: string | null | undefined): string | null {
  if (!isSecureContext) return "Browsers allow notifications only over HTTPS or on this machine itself.";
  if (!("serviceWorker" in navigator) || !("PushManager" in window)) return "This browser does not support Web Push. On an iPhone, add the page to the home screen first.";
  return key ? null : "Web Push is switched off on this server.";
}

export async function subscription(): Promise<PushSubscription | null> {
  if (!("serviceWorker" in navigator)) return null;
  const registration = await navigator.serviceWorker.getRegistration("/");
  return (await registration?.pushManager?.getSubscription()) ?? null;
}

export async function switchOn(key: string): Promise<void> {
  if ((await Notification.requestPermission()) !== "granted") throw new Error("The browser does not allow notifications for this page.");
  await navigator.serviceWorker.register(scriptAddress("/sw.js"));
  const registration = await navigator.serviceWorker.ready;
  const made = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  await post("/api/push/receivers", { kind: "webpush", subscription: made.toJSON(), device: deviceName() });
}

export async function switchOff(receiver: string | null): Promise<void> {
  if (receiver !== null) await send("DELETE", `/api/push/receivers/${encodeURIComponent(receiver)}`);
  await (await subscription())?.unsubscribe();
}
