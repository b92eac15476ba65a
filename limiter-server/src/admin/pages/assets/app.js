// Refreshes the parts of a page that change, shows times in the zone of the viewer, and focuses the
// search with Cmd+K or Ctrl+K. Every page works without this script.

const INTERVAL = 5000;
const STALE_AFTER = 30000;

const zone = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short",
});

function showLocalTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    time.title = time.dateTime.replace("T", " ").replace("Z", " UTC");
    time.textContent = zone.format(at);
  }
}

const readAt = Date.now();
let updatedAt = readAt;

// Parts with data-read are not refreshed, because each read of them is recorded.
function showAge() {
  const age = { live: Date.now() - updatedAt, read: Date.now() - readAt };
  for (const part of document.querySelectorAll("[data-live]")) part.classList.toggle("stale", age.live > STALE_AFTER);
  for (const part of document.querySelectorAll("[data-read]")) part.classList.toggle("stale", age.read > STALE_AFTER);
  for (const shown of document.querySelectorAll("[data-age]")) {
    const seconds = Math.round(age[shown.dataset.age || "live"] / 1000);
    shown.textContent = seconds < 2 ? "now" : `${seconds} s ago`;
  }
}

let tag = null;

// Nothing moves under the cursor, the focus or a selection.
function isInUse(part) {
  if (part.contains(document.activeElement)) return true;
  const selection = document.getSelection();
  if (selection !== null && !selection.isCollapsed && selection.containsNode(part, true)) return true;
  return part.matches(":hover");
}

async function refresh() {
  if (document.hidden || document.querySelector("[data-live]") === null) return;
  const headers = { "x-refresh": "1" };
  if (tag !== null) headers["if-none-match"] = tag;
  let answer;
  try {
    answer = await fetch(document.body.dataset.refresh || location.href, { headers, cache: "no-store", redirect: "error" });
  } catch {
    return;
  }
  if (answer.status === 304) {
    updatedAt = Date.now();
    return;
  }
  if (!answer.ok) return;
  tag = answer.headers.get("etag");
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  updatedAt = Date.now();
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const fresh = next.getElementById(part.id);
    if (fresh === null || isInUse(part)) continue;
    showLocalTimes(fresh);
    if (fresh.innerHTML !== part.innerHTML) part.innerHTML = fresh.innerHTML;
    part.className = fresh.className;
  }
  document.dispatchEvent(new CustomEvent("refreshed", { detail: next }));
}

function focusSearch(event) {
  const isShortcut = event.key === "k" && (event.metaKey || event.ctrlKey);
  const search = document.getElementById("q");
  if (!isShortcut || search === null) return;
  event.preventDefault();
  search.focus();
  search.select();
}

function closeMenus(event) {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (event.key === "Escape" || (event.type === "click" && !menu.contains(event.target))) menu.open = false;
  }
}

showLocalTimes(document);
setInterval(showAge, 1000);
setInterval(refresh, INTERVAL);
document.addEventListener("visibilitychange", refresh);
document.addEventListener("keydown", focusSearch);
document.addEventListener("keydown", closeMenus);
document.addEventListener("click", closeMenus);
