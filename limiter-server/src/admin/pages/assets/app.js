// Refreshes the parts of a page that change, shows times in the zone of the viewer, and focuses the
// search with Cmd+K or Ctrl+K. Every page works without this script.

const INTERVAL = 5000;
const STALE_AFTER = 30000;
/** The server answers a change in this time, also if the database does not confirm it. */
const ANSWERED_WITHIN = 10000;

const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const zones = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" });

/** The name of the viewer's zone at a time. */
function zoneName(at) {
  return zones.formatToParts(at).find((part) => part.type === "timeZoneName").value;
}

const pad = (number) => String(number).padStart(2, "0");

/** A time in the zone of the viewer, as the value of a field. */
function localText(at) {
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day}T${pad(at.getHours())}:${pad(at.getMinutes())}`;
}

// The server's formats with another zone: the page may be painted before this script runs, and a
// text of another width would move the content below it.
function showLocalTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    time.title = time.dateTime.replace("T", " ").replace("Z", " UTC");
    const seconds = "seconds" in time.dataset ? `:${pad(at.getSeconds())}` : "";
    time.textContent = `${localText(at).replace("T", " ")}${seconds} ${zoneName(at)}`;
  }
  for (const option of root.querySelectorAll("option[data-at]")) {
    const at = new Date(option.dataset.at);
    const day = `${WEEKDAYS[at.getDay()]} ${at.getDate()} ${MONTHS[at.getMonth()]}`;
    const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}`;
    option.textContent = `${option.dataset.name}: ${day}, ${clock} ${zoneName(at)}`;
  }
  for (const shown of root.querySelectorAll("[data-zone]")) shown.textContent = zoneName(new Date());
}

/** The value of a field in UTC. */
function utcText(value) {
  const at = new Date(value);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString().slice(0, 16);
}

// Fields of times have UTC without this script. With it, they have the zone of the viewer, and
// their forms send UTC.
function useLocalFields() {
  for (const field of document.querySelectorAll("input[type=datetime-local]")) {
    // A browser that reloads or goes back restores a value, which has the zone of the viewer.
    const isRestored = field.value !== field.defaultValue;
    const at = new Date(`${field.value}Z`);
    if (!isRestored && !Number.isNaN(at.getTime())) field.value = localText(at);
    // Computed at submission: the browser restores values without an event.
    field.form.addEventListener("formdata", (event) => event.formData.set(field.name, utcText(field.value)));
  }
}

const readAt = Date.now();
/** The time at which a part with data-live was known to be current. */
const currentAt = new WeakMap();

// Parts with data-read are not refreshed, because each read of them is recorded. A page is as old
// as its oldest part.
function showAge() {
  const now = Date.now();
  const age = { live: 0, read: now - readAt };
  for (const part of document.querySelectorAll("[data-live]")) {
    const ofPart = now - (currentAt.get(part) ?? readAt);
    part.classList.toggle("stale", ofPart > STALE_AFTER);
    if (part.closest("main") !== null) age.live = Math.max(age.live, ofPart);
  }
  for (const part of document.querySelectorAll("[data-read]")) part.classList.toggle("stale", age.read > STALE_AFTER);
  for (const shown of document.querySelectorAll("[data-age]")) {
    const elapsed = Math.round(age[shown.dataset.age || "live"] / 1000);
    shown.textContent = elapsed < 2 ? "now" : `${elapsed} s ago`;
  }
}

/** The entity tag of `latest`. */
let tag = null;
/** The last answer, which a part that was in use adopts later. */
let latest = null;
let isRefreshing = false;

/** The elements under the cursor, with the focus, and at the ends of a selection. */
function elementsInUse() {
  const hovered = [...document.querySelectorAll("main :hover")].pop();
  const used = [hovered, document.activeElement];
  const selection = document.getSelection();
  if (selection !== null && !selection.isCollapsed) {
    used.push(selection.anchorNode.parentElement, selection.focusNode.parentElement);
  }
  return used.filter((element) => element && element !== document.body && element.closest("main") !== null);
}

// Nothing in use changes or moves: a part that contains it, or that would push it, keeps its
// content, and its age grows.
function adopt(part, fresh, used) {
  showLocalTimes(fresh);
  const isSame = fresh.innerHTML === part.innerHTML;
  if (!isSame) {
    if (part.matches(":hover") || used.some((element) => part.contains(element))) return;
    const selection = document.getSelection();
    if (selection !== null && !selection.isCollapsed && selection.containsNode(part, true)) return;
    const places = used.map((element) => element.getBoundingClientRect().top);
    const before = [...part.childNodes];
    part.replaceChildren(...fresh.cloneNode(true).childNodes);
    if (used.some((element, at) => element.getBoundingClientRect().top !== places[at])) {
      part.replaceChildren(...before);
      return;
    }
  }
  part.className = fresh.className;
  currentAt.set(part, Date.now());
}

function adoptLatest() {
  const used = elementsInUse();
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const fresh = latest.getElementById(part.id);
    if (fresh !== null) adopt(part, fresh, used);
  }
  showAge();
}

/** Reads the page again; returns whether it has changed. Fails if the answer is incomplete. */
async function readPage() {
  const headers = { "x-refresh": "1" };
  if (tag !== null) headers["if-none-match"] = tag;
  const signal = AbortSignal.timeout(STALE_AFTER);
  const options = { headers, signal, cache: "no-store", redirect: "error" };
  const answer = await fetch(document.body.dataset.refresh || location.href, options);
  if (answer.status === 304) return false;
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const text = await answer.text();
  latest = new DOMParser().parseFromString(text, "text/html");
  tag = answer.headers.get("etag");
  return true;
}

// One at a time: two refreshes could store the tag of one answer with the page of the other.
async function refresh() {
  if (isRefreshing || document.hidden || document.querySelector("[data-live]") === null) return;
  isRefreshing = true;
  let hasChanged;
  try {
    hasChanged = await readPage();
  } catch {
    // The server does not answer; the page grows old.
    return;
  } finally {
    isRefreshing = false;
  }
  adoptLatest();
  if (hasChanged) document.dispatchEvent(new CustomEvent("refreshed", { detail: latest }));
}

/** The times at which the forms of the page were sent. */
let sentAt = new WeakMap();

// A second click, before the answer to the first one, would send a form twice.
function sendOnce(event) {
  const form = event.target;
  if (form.method !== "post") return;
  if (Date.now() - (sentAt.get(form) ?? 0) < ANSWERED_WITHIN) event.preventDefault();
  else sentAt.set(form, Date.now());
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
    if (event.type === "click" ? menu.contains(event.target) : event.key !== "Escape") continue;
    // The focus would be lost with the closed part.
    if (event.key === "Escape" && menu.contains(document.activeElement)) menu.querySelector("summary").focus();
    menu.open = false;
  }
}

showLocalTimes(document);
useLocalFields();
setInterval(showAge, 1000);
setInterval(refresh, INTERVAL);
document.addEventListener("visibilitychange", refresh);
document.addEventListener("submit", sendOnce);
// A page to which the browser returns can be as it was when its form was sent.
addEventListener("pageshow", () => (sentAt = new WeakMap()));
document.addEventListener("keydown", focusSearch);
document.addEventListener("keydown", closeMenus);
document.addEventListener("click", closeMenus);
