// The live page of Ashlar: asks the server every second, and shows what it says.
import {ask, openSession} from '/ui/api.js';
import {byId, duration, setAttribute, setText} from '/ui/dom.js';
import {History} from '/ui/history.js';
import {showCharts, showOverview} from '/ui/overview.js';
import {learnNames} from '/ui/receipt.js';
import {readTimeline, setUpRuns, setUpTravel, showMoment} from '/ui/travel.js';
import {learnModels, setUpTree, treeIsShown} from '/ui/tree.js';

const period = 1000;
const isPast = location.pathname.startsWith('/past');
const history = new History();
let live = null;
let paused = false;
let again = () => show();  // what is on the page

function setStatus(text, is) {
  setText(byId('status'), text);
  setAttribute(document.body, 'data-live', is);
}

// What live pages and journals have in common.
function showParts(now, samples) {
  live = now;
  const title = now.title ?? '';
  byId('page-title').hidden = title === '';
  setText(byId('page-title'), title);
  document.title = title === '' ? 'Ashlar' : `${title} · Ashlar`;
  byId('past').hidden = !now.has_journal && !isPast;
  showOverview(now, samples);
  learnNames(now);
  learnModels(now);
}

function show() {
  showParts(live, history);
  // The charts grow to the left until they are full.
  const span = Math.max(history.span(), 60 * period);
  showCharts(history.fateRows(), history.flowRows(), [`${Math.round(span / 1000)} s ago`, 'now']);
}

async function showJournal(first) {
  setAttribute(document.body, 'data-source', 'journal');  // hides what a journal does not know
  setText(byId('fate-span'), 'per second, over the journal');
  await readTimeline(first.journal.to_ms);  // if it fails the page asks again, and nothing is set up
  setUpTravel(showParts);
  setUpRuns(first);
  again = () => showMoment(live, showParts);
  showMoment(first, showParts);
  setStatus('journal', 'paused');
}

async function poll() {
  if (!paused && !document.hidden) {
    try {
      const now = await ask('/live');
      if (now.source === 'journal') return await showJournal(now);
      live = now;
      history.add(live);
      show();
      setStatus(live.draining ? 'stopping' : `live · up ${duration(live.time_ms)}`, live.draining ? 'no' : 'yes');
      setAttribute(document.body, 'data-time', live.time_ms);
    } catch (error) {
      setStatus(error.status ? error.message : 'no answer; trying again', 'no');
    }
  }
  setTimeout(poll, period);
}

function setUpTheme() {
  const names = {auto: 'Auto', light: 'Light', dark: 'Dark'};
  const order = Object.keys(names);
  const button = byId('theme');
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    setText(button, names[theme]);
    setAttribute(button, 'aria-label', theme === 'auto' ? 'Colours: as the system' : `Colours: ${theme}`);
  };
  const stored = localStorage.getItem('ashlar.theme');
  set(order.includes(stored) ? stored : 'auto');
  button.addEventListener('click', () => {
    const next = order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length];
    localStorage.setItem('ashlar.theme', next);
    set(next);
  });
}

function setUpViews() {
  const show = () => {
    const view = location.hash === '#tree' ? 'tree' : 'overview';
    for (const name of ['overview', 'tree']) byId(`view-${name}`).hidden = name !== view;
    for (const link of document.querySelectorAll('nav a[data-view]')) {
      if (link.dataset.view === view) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
    if (view === 'tree') treeIsShown();
  };
  addEventListener('hashchange', show);
  show();
}

byId('filter').addEventListener('input', () => live && again());
byId('pause').addEventListener('click', () => {
  paused = !paused;
  setAttribute(byId('pause'), 'aria-pressed', paused);
  setText(byId('pause'), paused ? 'Go on' : 'Pause');
  if (paused) setStatus('paused', 'paused');
});
if (isPast) {
  setText(byId('past'), 'Live');
  setAttribute(byId('past'), 'href', '/');
}
setUpTheme();
await openSession();
setUpTree();
setUpViews();
poll();
