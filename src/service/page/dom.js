// Small tools for the page: elements, numbers, keyed rows.

export const byId = (id) => document.getElementById(id);

// make('td', {class: 'n', text: '3', 'data-key': 'x'}, child, …)
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'text') element.textContent = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Only what differs is written: selections and screen readers are left alone.
export function setText(element, text) {
  const value = String(text);
  if (element.textContent !== value) element.textContent = value;
}

export function setAttribute(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

const grouped = new Intl.NumberFormat('en-US');
// A count, whole: 12,345.
export const count = (value) => grouped.format(value);
// A rate or a mean: two or three digits that count.
export function rate(value) {
  if (!Number.isFinite(value)) return '0';
  if (value >= 100 || Number.isInteger(value)) return grouped.format(Math.round(value));
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
export const share = (part, whole) => (whole > 0 ? part / whole : 0);
export const percent = (value) => `${(100 * value).toFixed(1)} %`;
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.floor((ms % 3_600_000) / 60_000)} min`;
}
export function nanoseconds(ns) {
  if (ns < 1e3) return [`${ns}`, 'ns'];
  if (ns < 1e6) return [rate(ns / 1e3), 'µs'];
  return [rate(ns / 1e6), 'ms'];
}

// Makes the children of `parent` those of `items`, by key: rows that stay keep their focus.
export function keyed(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.row, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (child) {
      old.delete(key);
    } else {
      child = create(item);
      child.dataset.row = key;
    }
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}

// A bar made of parts: [{value, colour, title}], of a whole.
export function setTrack(track, parts, whole) {
  while (track.children.length > parts.length) track.lastElementChild.remove();
  while (track.children.length < parts.length) track.append(make('i'));
  parts.forEach((part, i) => {
    const piece = track.children[i];
    piece.style.width = `${whole > 0 ? Math.min(100, (100 * part.value) / whole) : 0}%`;
    piece.style.background = `var(--${part.colour})`;
    if (part.title) setAttribute(piece, 'title', part.title);
  });
}

export const tierNames = ['device', 'host', 'disk', 'external', 'remote'];

// A list of labelled bars: [{name, value, whole, colour, note, key}]
export function setBars(list, entries) {
  keyed(
    list,
    entries,
    (entry) => entry.name,
    (entry) => make('div', {}, make('dt'), make('div', {class: 'track'}), make('dd')),
    (row, entry) => {
      const [name, track, value] = row.children;
      setText(name, entry.name);
      setTrack(track, [{value: entry.value, colour: entry.colour}], entry.whole);
      if (value.dataset.key !== entry.key) value.dataset.key = entry.key;
      const text = count(entry.value);
      if (value.firstChild?.textContent !== text || value.dataset.note !== entry.note) {
        value.textContent = text;
        if (entry.note) value.append(make('small', {text: ` ${entry.note}`}));
        value.dataset.note = entry.note ?? '';
      }
    },
  );
}
