// Refreshes the elements with the attribute `data-live` every five seconds.
//
// The page is requested again with its ETag, so an unchanged page costs one short answer. Elements
// are replaced by those with the same id. Nothing moves under the cursor or the focus: such an
// element keeps its content until the next pass. Hidden tabs ask nothing. Content that is older
// than 30 seconds turns grey and shows its age.

const INTERVAL = 5_000;
const STALE_AFTER = 30_000;

let etag = null;
let timer = null;
let isEnded = false;

const liveElements = () => document.querySelectorAll("[data-live][id]");

function isInUse(element) {
  if (element.contains(document.activeElement)) return true;
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && selection.containsNode(element, true)) return true;
  return element.matches(":hover") && element.matches("tbody, ul, ol, [data-live=hold]");
}

function markFresh(element, now) {
  element.dataset.liveAt = String(now);
  element.classList.remove("stale");
  element.removeAttribute("title");
}

function replace(next, now) {
  for (const element of liveElements()) {
    const newer = next.getElementById(element.id);
    if (!newer) continue;
    if (newer.innerHTML !== element.innerHTML || newer.className !== element.dataset.liveClass) {
      if (isInUse(element)) continue;
      element.dataset.liveClass = newer.className;
      element.className = newer.className;
      element.replaceChildren(...document.adoptNode(newer).childNodes);
    }
    markFresh(element, now);
  }
  document.dispatchEvent(new CustomEvent("live"));
}

function markStale() {
  const now = Date.now();
  for (const element of liveElements()) {
    const age = now - Number(element.dataset.liveAt);
    if (age < STALE_AFTER) continue;
    element.classList.add("stale");
    element.title = `${Math.round(age / 1000)} s old`;
  }
}

async function refresh() {
  const headers = { accept: "text/html" };
  if (etag) headers["if-none-match"] = etag;
  const answer = await fetch(location.href, { headers, redirect: "manual", cache: "no-store" });
  const now = Date.now();
  if (answer.status === 304) {
    for (const element of liveElements()) markFresh(element, now);
    document.dispatchEvent(new CustomEvent("live"));
  } else if (answer.ok) {
    etag = answer.headers.get("etag");
    replace(new DOMParser().parseFromString(await answer.text(), "text/html"), now);
  } else if (answer.type === "opaqueredirect" || answer.status === 404) {
    // The session has ended, or the object is gone.
    isEnded = true;
  }
}

async function pass() {
  timer = null;
  if (document.hidden || isEnded) return;
  try {
    await refresh();
  } catch {
    // The server does not answer; the numbers grow old.
  }
  schedule(INTERVAL);
}

function schedule(delay) {
  if (timer === null && !isEnded) timer = setTimeout(pass, delay);
}

if (liveElements().length > 0) {
  for (const element of liveElements()) {
    element.dataset.liveClass = element.className;
    markFresh(element, Date.now());
  }
  setInterval(markStale, 1_000);
  schedule(INTERVAL);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) schedule(0);
  });
}
