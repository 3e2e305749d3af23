// The overview: numbers, charts, workers, decisions.
import {AreaChart, setSpark, spark} from '/ui/charts.js';
import {
  byId, count, duration, keyed, make, nanoseconds, percent, rate, setAttribute, setBars, setText, setTrack, share,
  tierNames,
} from '/ui/dom.js';
import {fateOf, ranksOf, sumOfTiers, tiersOf} from '/ui/history.js';
import {showReceipt} from '/ui/receipt.js';

const mostRows = 256;
const fates = [
  {name: 'delivered', colour: 'device'},
  {name: 'claimed, not found', colour: 'bad'},
  {name: 'at another worker', colour: 'disk'},
  {name: 'nowhere', colour: 'cold'},
];
const journalFates = [{name: 'claimed', colour: 'device'}, ...fates.slice(1)];
// Upwards what is stored, offloads of it apart; downwards what is removed.
const flows = [
  {name: 'stored', colour: 'host'}, {name: 'offloaded', colour: 'external'}, {name: 'removed', colour: 'remote'},
];
const missReasons = [
  ['never_seen', 'never seen', 'cold'],
  ['evicted', 'evicted', 'remote'],
  ['elsewhere', 'at another worker', 'disk'],
  ['broken_prefix', 'behind a gap', 'external'],
];

const cards = [
  ['requests', 'Requests', '/s'],
  ['running', 'Running', ''],
  ['waiting', 'Waiting', '', 'live'],
  ['hits', 'Tokens from cache', ''],
  ['choice', 'Choice time, at most', '', 'live'],
  ['held', 'Blocks held', ''],
  ['exact', 'Workers exact', ''],
];

let numbers = null;
let charts = null;

function build() {
  numbers = new Map();
  for (const [key, name, unit, when = ''] of cards) {
    const value = make('span', {'data-number': key});
    const after = make('small', {text: unit});
    const line = spark();
    byId('numbers').append(make('div', {class: `number ${when}`}, make('h3', {text: name}), make('p', {}, value, after), line));
    numbers.set(key, {value, after, line});
  }
  charts = {
    fate: new AreaChart(byId('fate-chart'), fates, 'Prompt tokens per second by where they were found'),
    flow: new AreaChart(byId('blocks-chart'), flows, 'Blocks stored, offloaded and removed per second', true),
  };
}

function setNumber(key, text, after, values) {
  const card = numbers.get(key);
  setText(card.value, text);
  setText(card.after, after);
  if (values) setSpark(card.line, values);
}

function setLegend(list, entries) {
  keyed(
    list,
    entries,
    (entry) => entry.name,
    (entry) => {
      const swatch = make('i', {class: 'swatch', 'aria-hidden': 'true'});
      swatch.style.background = `var(--${entry.colour})`;
      return make('div', {}, make('dt', {}, swatch, entry.name), make('dd', {'data-key': entry.key}));
    },
    (row, entry) => {
      const value = row.lastElementChild;
      const text = count(entry.value);
      if (value.dataset.text === `${text}${entry.note}`) return;
      value.dataset.text = `${text}${entry.note}`;
      value.replaceChildren(text, make('small', {text: ` ${entry.note}`}));
    },
  );
}

function showNumbers(live, history) {
  const {totals} = live;
  const ranks = ranksOf(live);
  const exact = ranks.filter(({rank}) => rank.state === 'EXACT').length;
  const [delivered] = fateOf(totals);
  const hits = history.samples.map(({fate}) => share(fate[0], fate.reduce((a, b) => a + b, 0)));
  setNumber('requests', rate(history.recent((s) => s.requests)), `/s of ${count(totals.requests)}`,
    history.rates((s) => s.requests));
  setNumber('running', count(totals.running), '', history.values((s) => s.running));
  setNumber('waiting', count(totals.waiting), '', history.values((s) => s.waiting));
  setNumber('hits', percent(share(delivered, totals.prompt_tokens)), '', hits);
  if (totals.route_ns) {
    const [median, unit] = nanoseconds(totals.route_ns.p50);
    const [high, highUnit] = nanoseconds(totals.route_ns.p99);
    setNumber('choice', median, `${unit} · p99 ${high} ${highUnit}`);
  }
  setNumber('held', count(sumOfTiers(live, 'held')), '', history.values((s) => s.held));
  setNumber('exact', count(exact), `of ${count(ranks.length)}`, history.values((s) => s.exact));
}

function showTotals(live, history) {
  const {totals} = live;
  const isJournal = live.source === 'journal';
  const names = isJournal ? journalFates : fates;
  const parts = fateOf(totals);
  setLegend(byId('fate-legend'), [
    ...names.map((fate, i) => ({
      ...fate, value: parts[i], note: percent(share(parts[i], totals.prompt_tokens)), key: `fate.${i}`,
    })).filter((_, i) => !(isJournal && i === 1)),
    {name: 'prompt tokens', colour: 'panel', value: totals.prompt_tokens, note: '', key: 'totals.prompt_tokens'},
  ]);
  const tiers = tiersOf(live);
  const stored = tiers.reduce((sum, tier) => sum + tier.stored, 0);
  const removed = tiers.reduce((sum, tier) => sum + tier.removed, 0);
  setLegend(byId('blocks-legend'), [
    {...flows[0], value: stored, note: `${rate(history.recent((s) => s.stored))}/s`, key: 'sum.stored'},
    {...flows[1], name: 'of these offloaded', value: sumOfTiers(live, 'offloaded'),
      note: `${rate(history.recent((s) => s.offloaded))}/s`, key: 'sum.offloaded'},
    {...flows[2], value: removed, note: `${rate(history.recent((s) => s.removed))}/s`, key: 'sum.removed'},
  ]);

  const most = Math.max(1, ...Object.values(totals.hit_blocks));
  setBars(byId('hits'), tierNames.map((tier) => ({
    name: tier, value: totals.hit_blocks[tier], whole: most, colour: tier, key: `totals.hit_blocks.${tier}`,
  })));
  const misses = totals.missed_blocks;  // null: a journal that was not replayed has none
  byId('misses').parentElement.hidden = misses === null;
  const missed = missReasons.map(([reason]) => misses?.[reason] ?? 0);
  setBars(byId('misses'), missReasons.map(([reason, name, colour], i) => ({
    name, value: missed[i], whole: Math.max(1, ...missed), colour, key: `totals.missed_blocks.${reason}`,
  })));
  const reasons = Object.entries(totals.misroutes ?? {}).map(([reason, value]) => ({
    name: reason.replaceAll('_', ' '), value, colour: 'bad', key: `totals.misroutes.${reason}`,
  }));
  const claims = isJournal ? [] : [
    {name: 'as claimed', value: totals.predictions_right, colour: 'host', key: 'totals.predictions_right'},
    ...reasons,
    {name: 'engine silent', value: totals.delivered_unknown, colour: 'cold', key: 'totals.delivered_unknown'},
  ];
  const all = Math.max(1, claims.reduce((sum, claim) => sum + claim.value, 0));
  setBars(byId('claims'), claims.map((claim) => ({...claim, whole: all})));
  setBars(byId('tiers'), tiers.map((tier) => ({
    name: tier.tier, value: tier.held, whole: tier.whole, colour: tier.tier,
    note: `of ${count(tier.whole)}${tier.isKnown ? '' : ' held at most'} · +${count(tier.stored)} −${count(tier.removed)}${offloadsOf(tier)}`,
    key: `tiers.${tier.tier}.held`,
  })));
}

// " · 12 from device", of blocks that came from faster tiers.
const offloadsOf = (tier) => Object.entries(tier.offloaded_from ?? {})
  .map(([from, blocks]) => ` · ${count(blocks)} from ${from}`).join('');

function tierCell(cell, tiers) {
  const used = tierNames.filter((tier) => tiers[tier]);
  const grid = cell.firstElementChild;
  while (grid.children.length > 3 * used.length) grid.lastElementChild.remove();
  while (grid.children.length < 3 * used.length) grid.append(make('span'), make('div', {class: 'track'}), make('b'));
  used.forEach((tier, i) => {
    const [name, track, value] = [...grid.children].slice(3 * i, 3 * i + 3);
    setText(name, tier);
    const {held, most, size} = tiers[tier];
    setTrack(track, [{value: held, colour: tier}], size ?? most);
    const whole = size === undefined ? '' : ` of ${count(size)}`;
    setAttribute(track, 'title', `${count(held)} blocks held${whole}; at most ${count(most)} so far${offloadsOf(tiers[tier])}`);
    setText(value, count(tiers[tier].held));
    value.dataset.tier = tier;
  });
}

function newWorkerRow() {
  const cell = (label, kind, ...children) => make('td', {class: kind, 'data-label': label}, ...children);
  return make('tr', {},
    make('td', {class: 'wide'}), make('td', {class: 'wide'}, make('span', {class: 'badge'}), ' ', make('span', {class: 'why'})),
    cell('running', 'n'), cell('prefill tokens', 'n'), cell('decode blocks', 'n'), cell('chosen', 'n'),
    cell(undefined, 'wide live', spark()), cell(undefined, 'wide', make('div', {class: 'tiercell'})),
    cell('stored/s', 'n live'), cell('removed/s', 'n live'));
}

function showWorkers(live, history) {
  const wanted = byId('filter').value.trim().toLowerCase();
  const all = ranksOf(live);
  const text = ({worker, rank}) =>
    `${worker.name} ${worker.model} ${rank.state} ${worker.up ? 'up' : 'down'} ${rank.reason ?? ''}`.toLowerCase();
  const found = wanted ? all.filter((one) => text(one).includes(wanted)) : all;
  const shown = found.slice(0, mostRows);
  setText(byId('workers-count'), wanted ? `${count(found.length)} of ${count(all.length)}` : count(all.length));
  byId('workers-more').hidden = shown.length === found.length;
  setText(byId('workers-more'), `${count(found.length - shown.length)} more: use the filter.`);
  keyed(byId('workers'), shown, ({worker, rank}) => `${worker.id}.${rank.dp_rank}`, newWorkerRow, (row, {worker, rank}) => {
    const [name, state, running, prefill, decode, chosen, load, blocks, stored, removed] = row.children;
    const key = row.dataset.row;
    setText(name, worker.ranks.length > 1 ? `${worker.name} · rank ${rank.dp_rank}` : worker.name);
    setAttribute(name, 'title', [worker.model, worker.address].filter(Boolean).join(' · '));
    const [badge, why] = state.children;
    const label = worker.up ? rank.state : 'down';
    setText(badge, label);
    setAttribute(badge, 'class', `badge ${label}`);
    setText(why, (worker.up ? rank.reason : worker.problem) ?? '');
    setText(running, count(rank.requests ?? 0));
    setText(prefill, count(rank.prefill_tokens ?? 0));
    setText(decode, count(rank.decode_blocks ?? 0));
    setText(chosen, count(rank.chosen ?? 0));
    setSpark(load.firstElementChild, history.rates((s) => s.changes.get(key)?.chosen ?? 0));
    tierCell(blocks, rank.tiers ?? {});
    setText(stored, rate(history.recent((s) => s.changes.get(key)?.stored ?? 0)));
    setText(removed, rate(history.recent((s) => s.changes.get(key)?.removed ?? 0)));
  });
}

function resultOf(decision) {
  const {outcome} = decision;
  if (outcome === undefined) return ['', ''];
  if (outcome === null) return ['running', ''];
  if (outcome.end !== 'complete') return [outcome.end.replaceAll('_', ' '), 'bad'];
  if (outcome.status !== 200) return [`status ${outcome.status}`, 'bad'];
  if (outcome.delivered_tokens === null) return ['engine silent', ''];
  return outcome.misroute === 'none' ? ['as claimed', 'good'] : [outcome.misroute.replaceAll('_', ' '), 'bad'];
}

function newDecisionRow(decision) {
  const open = make('button', {type: 'button', class: 'link id', text: decision.id});
  open.addEventListener('click', () => showReceipt(decision.id));
  const cell = (label, kind, ...children) => make('td', {class: kind, 'data-label': label}, ...children);
  return make('tr', {}, cell('age', 'n'), make('td', {}, open), cell('model', ''), cell('worker', ''),
    make('td', {}, make('span', {class: 'badge'})), cell('prompt', 'n'), cell('claimed', 'n'),
    make('td', {class: 'wide'}, make('div', {class: 'track'})), cell('best', 'n'), cell('delivered', 'n live'), make('td', {class: 'live'}));
}

function showDecisions(live) {
  byId('decisions-none').hidden = live.decisions.length > 0;
  keyed(byId('decisions'), live.decisions, (decision) => decision.id, newDecisionRow, (row, decision) => {
    const [age, , model, worker, state, prompt, claimed, part, best, delivered, result] = row.children;
    setText(age, duration(decision.age_ms));
    setText(model, decision.model);
    setText(worker, decision.dp_rank > 0 ? `${decision.worker} · ${decision.dp_rank}` : decision.worker);
    setText(state.firstElementChild, decision.state);
    setAttribute(state.firstElementChild, 'class', `badge ${decision.state}`);
    setText(prompt, `${decision.prompt_tokens_are_estimated ? '~' : ''}${count(decision.prompt_tokens)}`);
    setText(claimed, count(decision.cached_tokens));
    setTrack(part.firstElementChild, [
      {value: decision.cached_tokens, colour: 'device', title: 'claimed'},
      {value: Math.max(0, decision.available_tokens - decision.cached_tokens), colour: 'disk', title: 'at another worker'},
    ], decision.prompt_tokens);
    setText(best, count(decision.available_tokens));
    const found = decision.outcome?.delivered_tokens;
    setText(delivered, found === undefined || found === null ? '–' : count(found));
    const [text, kind] = resultOf(decision);
    setText(result, text);
    setAttribute(result, 'class', `live ${kind}`);
  });
}

export function showOverview(live, history) {
  if (!numbers) build();
  showNumbers(live, history);
  showTotals(live, history);
  showWorkers(live, history);
  showDecisions(live);
}

// Of rows [delivered, lost, elsewhere, nowhere] and [stored, offloaded, removed] per second; `axis` says when
// the first and the last of them were.
export function showCharts(fateRows, flowRows, axis, points, cursor) {
  for (const [chart, rows] of [[charts.fate, fateRows], [charts.flow, flowRows]]) {
    chart.set(rows, points);
    chart.setAxis(axis);
  }
  if (cursor === undefined) return;
  charts.fate.setCursor(cursor);
  charts.flow.setCursor(cursor);
}
