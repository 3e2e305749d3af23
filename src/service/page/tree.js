// The prefix tree, and the search for a prompt's blocks.
//
// The server aggregates: it sends the largest elements below a root, and counts the others. At most 2,000 are
// on the page; what is closed is dropped.
import {ask} from '/ui/api.js';
import {byId, count, duration, keyed, make, setText, setTrack, share} from '/ui/dom.js';

const mostShown = 2000;
const atOnce = 120;  // children of an element
const colours = 8;   // of workers; more share them

let live = null;
let moment = '';  // of a journal, as it stands in questions; the tree on the page is of then
let wanted = '';  // the moment that was asked for last
let asked = 0;    // times that the tree was asked for anew
let numbers = new Map();  // of workers on this page, by key: their colours
let shown = 0;
let awaited = 0;  // at most so many elements come with answers that are on their way
const items = new WeakMap();  // elements of the page -> of the tree
const rests = new WeakMap();  // rows that stand for children which are not shown -> what they are of

const nameOf = (worker) => (worker.dp_rank > 0 ? `${worker.name} · ${worker.dp_rank}` : worker.name);
const keyOf = (worker) => `${worker.id}.${worker.dp_rank}`;
const colourOf = (worker) => `w${(numbers.get(keyOf(worker)) ?? 0) % colours}`;
const isTreeShown = () => !byId('view-tree').hidden;

// Fills a <select> with the models of the workers; the choice stays.
function setModels(select) {
  const models = [...new Set(live.workers.map((worker) => worker.model).filter(Boolean))];
  if (models.join('\n') === [...select.options].map((option) => option.value).join('\n')) return;
  const chosen = select.value;
  select.replaceChildren(...models.map((model) => make('option', {value: model, text: model})));
  if (models.includes(chosen)) select.value = chosen;
}

// --- The tree. ---

// Answers number workers each in its own way: their elements are told by the workers themselves.
function resolved(element, workers) {
  element.held = element.held.map(([number, blocks]) => [workers[number], blocks]);
  for (const child of element.shown) resolved(child, workers);
  return element;
}

function learnWorkers(workers) {
  const sorted = [...workers].sort((a, b) => a.id - b.id || a.dp_rank - b.dp_rank);
  for (const worker of sorted) {
    if (!numbers.has(keyOf(worker))) numbers.set(keyOf(worker), numbers.size);
  }
  return sorted;
}

function row(element, parentBelow) {
  const track = make('div', {class: 'track'});
  const parts = element.held.map(([worker, blocks]) => ({
    value: blocks, colour: colourOf(worker), title: `${nameOf(worker)}: ${count(blocks)} blocks`,
  }));
  // Every worker may hold all of it: the bar is as long as its share of the parent, and divided among holders.
  const held = element.held.reduce((sum, [, blocks]) => sum + blocks, 0);
  const scale = share(element.below, parentBelow);
  setTrack(track, parts.map((part) => ({...part, value: share(part.value, held) * scale})), 1);
  const first = element.position;
  const what = element.blocks === 1 ? `block ${count(first)}` : `blocks ${count(first)}–${count(first + element.blocks - 1)}`;
  return make('div', {class: 'node'},
    make('span', {class: 'open', 'aria-hidden': 'true', text: element.children > 0 ? '▸' : ''}),
    make('span', {class: 'what'}, what, make('small', {text: `  ${element.name.slice(0, 8)}`})),
    track,
    make('span', {class: 'n', 'data-below': element.name, text: count(element.below)}),
    make('span', {class: 'who n', text: element.holders === 1 ? '1 worker' : `${count(element.holders)} workers`}));
}

function newItem(element, parent, level) {
  const item = make('li', {
    role: 'treeitem', tabindex: '-1', 'aria-level': level,
    'aria-expanded': element.children > 0 ? 'false' : undefined,
    'aria-label': `prefix ${element.name.slice(0, 8)}: ${count(element.below)} blocks at ${count(element.holders)} workers`,
  }, row(element, parent.below));
  items.set(item, element);
  ++shown;
  return item;
}

// Appends the children that came; `before` of them are there. The last row opens more of them.
function fill(list, element, level, before = 0) {
  for (const child of element.shown) {
    const item = newItem(child, element, level);
    list.append(item);
    if (child.shown.length > 0) expand(item, child);
  }
  const there = before + element.shown.length;
  if (element.children <= there || element.shown.length === 0) return;
  const rest = make('li', {role: 'treeitem', tabindex: '-1', 'aria-level': level, class: 'rest',
    text: `and ${count(element.children - there)} smaller ones, ${count(element.hidden_below)} blocks: more`});
  rests.set(rest, {element, there});
  list.append(rest);
}

// Asks for more children of an element. What is open stays.
async function openRest(rest) {
  const {element, there} = rests.get(rest);
  const list = rest.parentElement;
  const level = Number(rest.getAttribute('aria-level'));
  const answer = await askFor(element.name, there);
  if (!answer || !rest.isConnected) return;
  // In between some may have changed their places: none is shown twice.
  const known = new Set([...list.children].map((item) => items.get(item)?.name));
  answer.root.shown = answer.root.shown.filter((child) => !known.has(child.name));
  const hadFocus = rest === document.activeElement;
  const previous = rest.previousElementSibling;
  rest.remove();
  fill(list, answer.root, level, there);
  setText(byId('tree-note'), `${count(shown)} elements shown.`);
  if (hadFocus) focusOn(previous.nextElementSibling ?? previous);
}

function expand(item, element) {
  const list = make('ul', {role: 'group'});
  fill(list, element, Number(item.getAttribute('aria-level')) + 1);
  item.append(list);
  item.setAttribute('aria-expanded', 'true');
  item.querySelector('.open').textContent = '▾';
}

function close(item) {
  shown -= item.querySelectorAll('[role="treeitem"]:not(.rest)').length;
  item.querySelector(':scope > ul')?.remove();
  item.setAttribute('aria-expanded', 'false');
  item.querySelector('.open').textContent = '▸';
}

const treePath = (root, limit, offset, at) =>
  `/tree?model=${encodeURIComponent(byId('tree-model').value)}&root=${root}&depth=1&limit=${limit}&offset=${offset}${at}`;

// As many children of an element as fit on the page; null: there is no room, or no answer, and the note says
// so.
async function askFor(name, offset) {
  const room = Math.min(atOnce, mostShown - shown - awaited);
  if (room <= 0) {
    setText(byId('tree-note'), `${count(mostShown)} elements are shown: close some first.`);
    return null;
  }
  awaited += room;
  try {
    const answer = await ask(treePath(name, room, offset, moment));
    learnWorkers(answer.workers);
    resolved(answer.root, answer.workers);
    return answer;
  } catch (error) {
    setText(byId('tree-note'), error.message);
    return null;
  } finally {
    awaited -= room;
  }
}

async function open(item) {
  if (rests.has(item)) return openRest(item);
  const element = items.get(item);
  if (!element || element.children === 0 || item.getAttribute('aria-expanded') === 'true') return;
  const answer = await askFor(element.name, 0);
  if (!answer || !item.isConnected || item.getAttribute('aria-expanded') === 'true') return;  // twice clicked
  expand(item, answer.root);
  setText(byId('tree-note'), `${count(shown)} elements shown.`);
}

async function refresh() {
  const isPast = live?.source === 'journal';
  const at = isPast ? `&at=${live.time_ms}` : '';
  const time = isPast ? `as of ${duration(live.time_ms)}` : null;
  const mine = ++asked;
  wanted = at;
  try {
    const answer = await ask(treePath('0', atOnce, 0, at));
    if (mine !== asked) return;  // a later one is shown, or on its way
    moment = at;
    const tree = byId('prefixes');
    const hadFocus = tree.contains(document.activeElement);
    numbers = new Map();
    const workers = learnWorkers(answer.workers);
    shown = 0;
    tree.replaceChildren();
    fill(tree, resolved(answer.root, answer.workers), 1);
    tree.dataset.blocks = answer.blocks;
    setText(byId('tree-facts'),
      `${count(answer.blocks)} different blocks, ${count(answer.copies)} held by ${count(workers.length)} workers, ` +
      `${count(answer.elements)} prefixes · ${time ?? `${duration(answer.age_ms)} old`}`);
    setText(byId('tree-note'), answer.blocks > 0 ? 'Arrow keys move, open and close.' : 'No blocks are held.');
    showLegend(workers);
    const first = tree.querySelector('[role="treeitem"]');
    if (first) first.tabIndex = 0;
    if (first) await open(first);
    if (hadFocus) first?.focus();
  } catch (error) {
    if (mine === asked) setText(byId('tree-note'), error.message);
  }
}

function showLegend(workers) {
  const list = byId('tree-legend');
  list.replaceChildren(...workers.slice(0, 24).map((worker) => {
    const swatch = make('i', {class: 'swatch', 'aria-hidden': 'true'});
    swatch.style.background = `var(--${colourOf(worker)})`;
    return make('div', {}, make('dt', {}, swatch, nameOf(worker)));
  }));
}

// One element of the tree is in the order of tabs: the one that had the focus last.
function focusOn(item) {
  if (!item) return;
  for (const other of byId('prefixes').querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
  item.tabIndex = 0;
  item.focus();
  item.scrollIntoView({block: 'nearest'});
}

const visibleItems = () => [...byId('prefixes').querySelectorAll('[role="treeitem"]')];

function onKey(event) {
  const item = event.target.closest?.('[role="treeitem"]');
  if (!item || event.altKey || event.ctrlKey || event.metaKey) return;
  const all = visibleItems();
  const at = all.indexOf(item);
  const isOpen = item.getAttribute('aria-expanded') === 'true';
  switch (event.key) {
    case 'ArrowDown': focusOn(all[at + 1]); break;
    case 'ArrowUp': focusOn(all[at - 1]); break;
    case 'Home': focusOn(all[0]); break;
    case 'End': focusOn(all.at(-1)); break;
    case 'ArrowRight':
      if (isOpen) focusOn(item.querySelector('[role="treeitem"]'));
      else open(item);
      break;
    case 'ArrowLeft':
      if (isOpen) close(item);
      else focusOn(item.parentElement.closest('[role="treeitem"]'));
      break;
    case 'Enter':
    case ' ':
      if (isOpen) close(item);
      else open(item);
      break;
    default: return;
  }
  event.preventDefault();
}

// --- The search. ---

// Numbers with commas or spaces between them, in brackets or not; null: it is a text.
function tokensOf(text) {
  const inside = text.trim().replace(/^\[|\]$/g, '');
  if (!/^\d+([\s,]+\d+)*[\s,]*$/.test(inside)) return null;
  return inside.split(/[\s,]+/).filter(Boolean).map(Number);
}

async function search(event) {
  event.preventDefault();
  const model = byId('search-model').value;
  const text = byId('prompt').value;
  const note = byId('search-note');
  byId('found-table').hidden = true;
  if (!text.trim()) return setText(note, 'Nothing to look for.');
  setText(note, 'Looking …');
  try {
    const isChat = byId('search-as').value === 'messages';
    const question = isChat ? {model, messages: [{role: 'user', content: text}]} : {model, prompt: text};
    const tokens = (isChat ? null : tokensOf(text)) ?? (await ask('/tokenize', question)).tokens;
    const size = Math.max(...live.workers.filter((worker) => worker.model === model)
      .flatMap((worker) => worker.ranks.map((rank) => rank.block_size)), 1);
    const {instances} = await ask('/query', {model_name: model, token_ids: tokens});
    const blocks = Math.floor(tokens.length / size);
    const found = live.workers.filter((worker) => worker.model === model)
      .map((worker) => ({worker, score: instances[worker.id] ?? {longest_matched: 0, gpu: 0, cpu: 0, disk: 0}}))
      .sort((a, b) => b.score.longest_matched - a.score.longest_matched);
    setText(note, `${count(tokens.length)} tokens, ${count(blocks)} whole blocks of ${count(size)}.`);
    byId('found').replaceChildren();
    keyed(byId('found'), found, ({worker}) => worker.id, () => {
      const cell = (label) => make('td', {class: 'n', 'data-label': label});
      return make('tr', {}, make('td'), cell('blocks'), make('td', {class: 'wide'}, make('div', {class: 'track'})),
        cell('device'), cell('or host'), cell('or lower'));
    }, (line, {worker, score}) => {
      const [name, all, part, device, host, lower] = line.children;
      setText(name, worker.name);
      setText(all, count(score.longest_matched / size));
      setTrack(part.firstElementChild, [{value: score.longest_matched / size, colour: 'device'}], Math.max(1, blocks));
      setText(device, count(score.gpu / size));
      setText(host, count(score.cpu / size));
      setText(lower, count(score.disk / size));
    });
    byId('found-table').hidden = false;
  } catch (error) {
    setText(note, error.message);
  }
}

// --- What the page calls. ---

export function setUpTree() {
  const tree = byId('prefixes');
  tree.addEventListener('keydown', onKey);
  tree.addEventListener('click', (event) => {
    const item = event.target.closest('[role="treeitem"]');
    if (!item) return;
    focusOn(item);
    if (item.getAttribute('aria-expanded') === 'true') close(item);
    else open(item);
  });
  byId('tree-refresh').addEventListener('click', refresh);
  byId('tree-model').addEventListener('change', refresh);
  byId('search').addEventListener('submit', search);
}

export function learnModels(now) {
  const isFirst = live === null;
  live = now;
  setModels(byId('tree-model'));
  setModels(byId('search-model'));
  if (isFirst && isTreeShown()) refresh();
}

// The page shows another moment of a journal.
export function treeHasMoved() {
  if (isTreeShown() && wanted !== `&at=${live.time_ms}`) refresh();
}

export function treeIsShown() {
  if (live) refresh();
}
