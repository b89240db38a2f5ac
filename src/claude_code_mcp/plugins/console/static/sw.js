// Shows what the server pushes, and opens the session it is about.
"use strict";

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("push", (event) => {
  let message = {};
  try {
    message = event.data.json();
  } catch {
    // A notification must be shown for every push, also for one that cannot be read.
  }
  // How many wait the page itself says when it is opened.
  if (navigator.setAppBadge) navigator.setAppBadge().catch(() => undefined);
  const text = (value) => (typeof value === "string" ? value.slice(0, 500) : "");
  event.waitUntil(
    self.registration.showNotification(text(message.title) || "Claude Code", {
      body: text(message.body),
      tag: text(message.tag) || "claude-code-mcp",
      renotify: true,
      icon: "/icon-192.png",
      data: { url: ownAddress(message.url) },
    }),
  );
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(show(ownAddress(event.notification.data && event.notification.data.url)));
});

/** The place in the page that an address names, at this very server: the one that people else reach it by may have
 * another name. Anything else becomes the first page. */
function ownAddress(address) {
  try {
    const { hash } = new URL(address, self.location.origin);
    if (hash.startsWith("#/")) return `${self.location.origin}/${hash}`;
  } catch {
    // Not an address at all.
  }
  return `${self.location.origin}/`;
}

async function show(url) {
  const windows = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const open = windows.find((one) => new URL(one.url).origin === self.location.origin);
  if (open === undefined) return void (await self.clients.openWindow(url));
  await open.focus().catch(() => undefined); // a browser that does not allow it shows the page all the same
  await open.navigate(url).catch(() => self.clients.openWindow(url));
}

// Without a server the page itself says what to do: its own address is answered from what was kept of it last.
self.addEventListener("fetch", (event) => {
  if (event.request.mode === "navigate" && new URL(event.request.url).pathname === "/") event.respondWith(pageOf(event.request));
});

async function pageOf(request) {
  const kept = await self.caches.open("page");
  try {
    const answer = await fetch(request);
    if (answer.ok) await kept.put("/", answer.clone());
    return answer;
  } catch (error) {
    const page = await kept.match("/");
    if (page === undefined) throw error;
    return page;
  }
}
