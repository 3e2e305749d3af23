// The samples of the last minutes, and what can be said of them: rates, shares, sums over workers.
import {tierNames} from '/ui/dom.js';

const kept = 301;

export const ranksOf = (live) => live.workers.flatMap((worker) => worker.ranks.map((rank) => ({worker, rank})));

export function sumOfTiers(live, field) {
  let sum = 0;
  for (const {rank} of ranksOf(live)) {
    for (const tier of Object.values(rank.tiers ?? {})) sum += tier[field];
  }
  return sum;
}

// Sums over workers by tier: [{tier, held, most, whole, stored, removed, offloaded_from}], those in use. What
// is whole is the size where it is known of every worker, else the most that was held: isKnown tells.
export function tiersOf(live) {
  const sums = new Map();
  for (const {rank} of ranksOf(live)) {
    for (const [tier, changes] of Object.entries(rank.tiers ?? {})) {
      const sum = sums.get(tier) ?? {
        tier, held: 0, most: 0, whole: 0, isKnown: true, stored: 0, removed: 0, offloaded_from: {},
      };
      for (const [from, blocks] of Object.entries(changes.offloaded_from ?? {})) {
        sum.offloaded_from[from] = (sum.offloaded_from[from] ?? 0) + blocks;
      }
      for (const field of ['held', 'most', 'stored', 'removed']) sum[field] += changes[field];
      sum.whole += changes.size ?? changes.most;
      sum.isKnown &&= changes.size !== undefined;
      sums.set(tier, sum);
    }
  }
  return tierNames.filter((tier) => sums.has(tier)).map((tier) => sums.get(tier));
}

// Where the tokens of prompts were found. The parts add up to the prompt.
export function fateOf(totals) {
  const prompt = totals.prompt_tokens;
  const claimed = totals.captured_tokens;
  const known = totals.delivered_tokens !== null;  // a journal does not say
  const delivered = Math.min(prompt, known ? totals.delivered_tokens : claimed);
  const lost = Math.min(prompt - delivered, Math.max(0, claimed - delivered));
  const elsewhere = Math.min(
    prompt - delivered - lost, Math.max(0, totals.available_tokens - Math.max(claimed, delivered)));
  return [delivered, lost, elsewhere, prompt - delivered - lost - elsewhere];
}

const turn = (series) => series[0].map((_, i) => series.map((one) => one[i]));

export class History {
  constructor() {
    this.run = null;
    this.samples = [];
    this.offset = 0;   // from the time of the run to that of the samples
    this.addedAt = 0;  // by the clock of the page
  }

  // `now`: ms by the page's clock. Another run goes on behind the one before, and its counters begin anew.
  add(live, now = performance.now()) {
    const last = this.samples.at(-1);
    if (live.run !== this.run) {
      this.offset = last ? last.time + Math.max(1, Math.round(now - this.addedAt)) - live.time_ms : 0;
    }
    this.run = live.run;
    const time = live.time_ms + this.offset;
    if (last && time <= last.time) return;
    this.addedAt = now;
    const changes = new Map();
    for (const {worker, rank} of ranksOf(live)) {
      const key = `${worker.id}.${rank.dp_rank}`;
      let stored = 0;
      let removed = 0;
      for (const tier of Object.values(rank.tiers ?? {})) {
        stored += tier.stored;
        removed += tier.removed;
      }
      changes.set(key, {stored, removed, chosen: rank.chosen ?? 0});
    }
    this.samples.push({
      time,
      run: live.run,
      requests: live.totals.requests,
      running: live.totals.running,
      waiting: live.totals.waiting,
      held: sumOfTiers(live, 'held'),
      stored: sumOfTiers(live, 'stored'),
      removed: sumOfTiers(live, 'removed'),
      offloaded: sumOfTiers(live, 'offloaded'),
      exact: ranksOf(live).filter(({rank}) => rank.state === 'EXACT').length,
      fate: fateOf(live.totals),
      changes,
    });
    if (this.samples.length > kept) this.samples.shift();
  }

  // Per second between two samples, of a number that `of` tells; never negative: a worker may have left.
  // Nothing between two runs.
  rates(of) {
    const out = [];
    for (let i = 1; i < this.samples.length; ++i) {
      const [a, b] = [this.samples[i - 1], this.samples[i]];
      out.push(a.run === b.run ? Math.max(0, (1000 * (of(b) - of(a))) / (b.time - a.time)) : 0);
    }
    return out;
  }

  // Rows for charts, per second.
  fateRows() {
    return turn([0, 1, 2, 3].map((i) => this.rates((s) => s.fate[i])));
  }

  flowRows() {
    const offloaded = this.rates((s) => s.offloaded);
    const stored = this.rates((s) => s.stored).map((all, i) => Math.max(0, all - offloaded[i]));
    return turn([stored, offloaded, this.rates((s) => s.removed)]);
  }

  // How long the samples last, in ms.
  span() {
    return this.samples.length < 2 ? 0 : this.samples.at(-1).time - this.samples[0].time;
  }

  // The mean rate of the last `seconds` of the run.
  recent(of, seconds = 10) {
    const last = this.samples.at(-1);
    const first = this.samples.find(
      (sample) => sample.run === last.run && sample.time >= last.time - 1000 * seconds);
    if (!last || !first || first === last) return 0;
    return Math.max(0, (1000 * (of(last) - of(first))) / (last.time - first.time));
  }

  values(of) {
    return this.samples.map(of);
  }
}
