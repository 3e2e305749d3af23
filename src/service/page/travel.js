// Time travel: over a journal the page has a slider in place of the clock.
import {ask} from '/ui/api.js';
import {byId, count, duration, make, setAttribute, setText} from '/ui/dom.js';
import {History, fateOf} from '/ui/history.js';
import {showCharts} from '/ui/overview.js';
import {treeHasMoved} from '/ui/tree.js';

const steps = 200;   // of a play from the first decision to the last
const pause = 100;   // ms between two of them
const newRuns = 2000;  // ms until it asks again which runs there are

let samples = [];    // of the whole journal
let shown = null;    // the answer on the page
let playing = false;
let asking = false;
let wanted = null;   // a moment to ask for when the answer is there

// The samples until a moment, as if the page had been open then.
function historyUntil(time) {
  const history = new History();
  history.samples = samples.filter((sample) => sample.time <= time);
  return history;
}

// Moments lie as far apart as they happened: the charts need equal steps of time.
function inEqualSteps(moments, end) {
  const out = [];
  let at = 0;
  for (let i = 0; i <= steps; ++i) {
    const time = (end * i) / steps;
    while (at + 1 < moments.length && moments[at + 1].time <= time) ++at;
    if (moments.length > 0) out.push({...moments[at], time});
  }
  return out;
}

export async function readTimeline(end) {
  const {columns, rows: table} = await ask('/timeline');
  const last = new Map();  // the last of those at one ms
  for (const row of table) {
    const one = Object.fromEntries(columns.map((name, i) => [name, row[i]]));
    last.set(one.time_ms, {
      ...one, time: one.time_ms, waiting: 0, changes: new Map(),
      fate: fateOf({...one, delivered_tokens: null}),
    });
  }
  samples = inEqualSteps([...last.values()], end);
}

function setBar(live) {
  const {journal} = live;
  const slider = byId('moment');
  const place = Math.round((slider.max * live.time_ms) / journal.to_ms);
  if (wanted === null && Number(slider.value) !== place) slider.value = place;
  setAttribute(slider, 'aria-valuetext', duration(live.time_ms));
  setText(byId('moment-text'), `${duration(live.time_ms)} of ${duration(journal.to_ms)}`);
  byId('back').disabled = journal.previous_ms === undefined;
  byId('forth').disabled = journal.next_ms === undefined;
  const notes = [journal.title ? `Replay of ${journal.title}: ${count(journal.decisions)} requests.`
    : `Journal of run ${live.run}: ${count(journal.decisions)} decisions.`];
  notes.push(journal.replayed ? `${count(journal.differences)} did not replay as written.`
    : 'Its first files are gone: decisions are as written, and workers are not known.');
  if (journal.removed_files > 0) notes.push(`Older files that are gone or not read: ${count(journal.removed_files)}.`);
  if (journal.left_out > 0) notes.push(`The first ${count(journal.left_out)} decisions are not kept.`);
  setText(byId('journal-note'), notes.join(' '));
}

export function showMoment(live, show) {
  shown = live;
  const history = historyUntil(live.time_ms);
  show(live, history);
  const all = historyUntil(Infinity);
  const axis = ['0 s', duration(live.journal.to_ms)];
  showCharts(all.fateRows(), all.flowRows(), axis, steps, live.time_ms / live.journal.to_ms);
  setBar(live);
  setAttribute(document.body, 'data-time', live.time_ms);
}

async function goTo(time, show) {
  wanted = Math.max(0, Math.round(time));
  if (asking) return;
  asking = true;
  try {
    while (wanted !== null) {
      const next = wanted;
      wanted = null;
      showMoment(await ask(`/live?at=${next}`), show);
    }
  } catch (error) {
    setText(byId('journal-note'), error.message);
    setPlaying(false);
  } finally {
    asking = false;
  }
  if (!playing) treeHasMoved();  // a tree takes a replay of the journal
}

function play(show) {
  if (!playing) return;
  const end = shown.journal.to_ms;
  goTo(Math.min(end, shown.time_ms + Math.max(1, end / steps)), show);
  if (shown.time_ms >= end) {
    setPlaying(false);
  }
  setTimeout(play, pause, show);
}

function setPlaying(is) {
  playing = is;
  setText(byId('play'), is ? 'Stop' : 'Play');
  if (!is) treeHasMoved();
}

// The runs of a replay, until all are there; another one is another page.
async function showRuns(run) {
  let answer = {runs: null, complete: false};
  try {
    answer = await ask('/runs.json');
  } catch (error) {
    setText(byId('journal-note'), `${error.message}; trying again`);
  }
  const {runs, complete} = answer;
  if (!complete) setTimeout(showRuns, newRuns, run);
  if (!runs) return;
  const select = byId('run');
  if (runs.length !== select.options.length) {
    select.replaceChildren(...runs.map(({name}, i) => make('option', {value: i + 1, text: name})));
    select.value = run;
    select.hidden = runs.length < 2;
  }
}

export function setUpRuns({journal}) {
  if (!journal.run) return;
  byId('report').hidden = false;
  byId('run').addEventListener('change', ({target}) => { location.search = `?run=${target.value}`; });
  showRuns(journal.run);
}

export function setUpTravel(show) {
  byId('travel').hidden = false;
  byId('moment').addEventListener('input', ({target}) => {
    goTo((shown.journal.to_ms * target.value) / target.max, show);
  });
  byId('back').addEventListener('click', () => goTo(shown.journal.previous_ms ?? 0, show));
  byId('forth').addEventListener('click', () => goTo(shown.journal.next_ms ?? shown.time_ms, show));
  byId('play').addEventListener('click', () => {
    if (!playing && shown.time_ms >= shown.journal.to_ms) goTo(0, show);
    setPlaying(!playing);
    if (playing) setTimeout(play, pause, show);
  });
}
