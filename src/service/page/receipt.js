// The receipt of a decision: every candidate, what it had, its load, and the terms of its cost.
import {ask} from '/ui/api.js';
import {byId, count, make, setText, tierNames} from '/ui/dom.js';

let names = new Map();
// Names of workers by their numbers, as last told.
export function learnNames(live) {
  names = new Map(live.workers.map((worker) => [worker.id, worker.name]));
}

const blocks = (thousandths) => (thousandths / 1000).toFixed(3);

function fact(name, value) {
  return make('div', {}, make('dt', {text: name}), make('dd', {text: value, 'data-fact': name}));
}

function facts(receipt) {
  const list = make('dl', {class: 'facts'});
  const tokens = (value) => (value === null || value === undefined ? 'not said' : count(value));
  list.append(
    fact('model', receipt.model),
    fact('worker', receipt.dp_rank > 0 ? `${receipt.worker} · rank ${receipt.dp_rank}` : receipt.worker),
    fact('state', receipt.state_reason ? `${receipt.state}: ${receipt.state_reason}` : receipt.state),
    fact('policy', receipt.policy),
    fact('prompt tokens', `${receipt.prompt_tokens_are_estimated ? '~' : ''}${count(receipt.prompt_tokens)}`),
    fact('block size', count(receipt.block_size)),
    fact('claimed tokens', count(receipt.cached_tokens)),
    fact('best worker', count(receipt.available_tokens)),
  );
  const missed = Object.entries(receipt.missed_blocks ?? {}).filter(([, blocks]) => blocks > 0);
  if (receipt.missed_blocks !== null)
    list.append(fact('blocks not found', count(missed.reduce((sum, [, blocks]) => sum + blocks, 0))));
  for (const [reason, blocks] of missed) list.append(fact(`of these ${reason.replaceAll('_', ' ')}`, count(blocks)));
  if (receipt.tokens) list.append(fact('tokens of the prompt', receipt.tokens));
  if (receipt.replayed) list.append(fact('replayed', receipt.replayed));
  if (receipt.claim_reason) list.append(fact('no claim', receipt.claim_reason));
  if (receipt.draw) list.append(fact('drawn', String(receipt.draw)));
  const {outcome} = receipt;
  if (outcome === null) list.append(fact('outcome', 'running'));
  if (outcome) {
    list.append(
      fact('delivered tokens', tokens(outcome.delivered_tokens)),
      fact('output tokens', tokens(outcome.output_tokens)),
      fact('end', `${outcome.end.replaceAll('_', ' ')}, status ${outcome.status}`),
      fact('found otherwise', outcome.misroute.replaceAll('_', ' ')),
    );
  }
  return list;
}

const columns = [
  ['worker', '', (c) => `${names.get(c.worker) ?? c.worker}${c.dp_rank > 0 ? ` · ${c.dp_rank}` : ''}`],
  ['state', '', (c) => c.state],
  ...tierNames.map((tier) => [tier, 'n', (c) => count(c.blocks[tier])]),
  ['expected', 'n', (c) => count(c.predicted_depth)],
  ['running', 'n', (c) => count(c.requests)],
  ['prefill tokens', 'n', (c) => count(c.prefill_tokens)],
  ['decode blocks', 'n', (c) => count(c.decode_blocks)],
  ['prefill', 'n', (c) => blocks(c.cost.prefill)],
  ['decode', 'n', (c) => blocks(c.cost.decode)],
  ['requests', 'n', (c) => blocks(c.cost.requests)],
  ['session', 'n', (c) => blocks(c.cost.session)],
  ['cost', 'n', (c) => blocks(c.cost.total)],
];

function candidates(receipt) {
  // A tier that no candidate used says nothing.
  const shown = columns.filter(([name]) =>
    !tierNames.includes(name) || name === 'device' || receipt.candidates.some((c) => c.blocks[name] > 0));
  const head = make('tr', {}, ...shown.map(([name, kind]) => make('th', {scope: 'col', class: kind, text: name})));
  const body = make('tbody');
  for (const candidate of receipt.candidates) {
    const isChosen = candidate.worker === receipt.worker_id && candidate.dp_rank === receipt.dp_rank;
    const row = make('tr', {class: isChosen ? 'chosen' : '', 'data-worker': candidate.worker});
    for (const [name, kind, value] of shown) {
      const cell = make('td', {class: kind, 'data-label': name === 'worker' ? undefined : name, 'data-term': name});
      if (name === 'state') cell.append(make('span', {class: `badge ${candidate.state}`, text: value(candidate)}));
      else cell.textContent = value(candidate);
      if (name === 'worker' && isChosen) cell.append(make('span', {class: 'good', text: ' ✓ chosen'}));
      if (name === 'worker' && candidate.excluded) {
        cell.append(make('span', {class: 'why', text: ` ${candidate.excluded.replaceAll('_', ' ')}`}));
      }
      row.append(cell);
    }
    body.append(row);
  }
  return make('table', {class: 'list'}, make('thead', {}, head), body);
}

export async function showReceipt(id) {
  const body = byId('receipt-body');
  setText(byId('receipt-title'), `Decision ${id}`);
  body.replaceChildren(make('p', {class: 'note', text: 'Asking …'}));
  if (!byId('receipt').open) byId('receipt').showModal();
  try {
    const receipt = await ask(`/decisions/${encodeURIComponent(id)}`);
    body.replaceChildren(
      facts(receipt),
      make('h2', {}, 'Candidates', make('small', {text: 'cost and its terms in blocks; the smallest wins'})),
      candidates(receipt),
    );
    body.dataset.decision = receipt.id;
  } catch (error) {
    body.replaceChildren(make('p', {class: 'bad', text: error.message}));
  }
}
