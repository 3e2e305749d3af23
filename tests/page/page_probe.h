// What tests read off the page: scripts that run in it.
#pragma once

namespace ashlar::testing {

// Every labelled number, the cards at the top, the rows of the workers and of the decisions, as the page
// shows them.
inline constexpr const char* kShownScript = R"((() => {
  const number = (text) => Number(text.replace(/[,~]/g, ''));
  const keys = {};
  for (const e of document.querySelectorAll('[data-key]'))
    keys[e.dataset.key] = number(e.firstChild.textContent);
  const cards = {};
  for (const e of document.querySelectorAll('[data-number]'))
    cards[e.dataset.number] = {value: e.textContent, after: e.nextElementSibling.textContent};
  const workers = {};
  for (const row of document.querySelectorAll('#workers tr')) {
    const cells = [...row.children];
    const tiers = {};
    for (const e of row.querySelectorAll('[data-tier]')) tiers[e.dataset.tier] = number(e.textContent);
    workers[row.dataset.row] = {
      name: cells[0].textContent, state: row.querySelector('.badge').textContent,
      numbers: cells.slice(2, 6).map((cell) => number(cell.textContent)), tiers,
    };
  }
  const decisions = [...document.querySelectorAll('#decisions tr')].map((row) => {
    const cells = [...row.children].map((cell) => cell.textContent);
    return {id: cells[1], worker: cells[3], state: cells[4], prompt: number(cells[5]),
      claimed: number(cells[6]), best: number(cells[8]),
      delivered: cells[9] === '–' ? -1 : number(cells[9]), result: cells[10]};
  });
  return {keys, cards, workers, decisions};
})())";

// The visible texts whose contrast with what is behind them is below 4.5, and how many were looked at.
inline constexpr const char* kContrastScript = R"((() => {
  const parse = (text) => {
    const n = text.match(/[\d.]+/g).map(Number);
    return {r: n[0], g: n[1], b: n[2], a: n.length > 3 ? n[3] : 1};
  };
  const light = ({r, g, b}) => {
    const part = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.a === 1) return colour;
    }
    return {r: 255, g: 255, b: 255};
  };
  const scope = document.querySelector('dialog[open]') ?? document.body;
  const low = [];
  let seen = 0;
  const walker = document.createTreeWalker(scope, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || !e.checkVisibility() || e.closest('option, script')) continue;
    ++seen;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${e.tagName}.${e.className} ${text.slice(0, 30)}`);
  }
  return {seen, low: low.join('; ')};
})())";

// What has the focus: its id, or what it is; and whether one can see that it has it.
inline constexpr const char* kFocusScript = R"((() => {
  const e = document.activeElement;
  const style = getComputedStyle(e.matches('[role="treeitem"]') ? e.firstElementChild : e);
  const isSeen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  const place = e.closest('tbody, dialog')?.id;
  const name = e.id || e.dataset.view || e.getAttribute('role') || place || e.tagName;
  return {name: e === document.body ? '' : name, visible: isSeen ? 1 : 0};
})())";

// Elements that reach out of the window to the right.
inline constexpr const char* kOverflowScript = R"((() => {
  const out = [];
  for (const e of (document.querySelector('dialog[open]') ?? document.body).querySelectorAll('*')) {
    const box = e.getBoundingClientRect();
    const isOut = box.width > 0 && box.left >= 0 && box.right > innerWidth + 0.5;
    if (isOut && !e.closest('svg')) out.push(e.tagName + '.' + e.className);
  }
  const scrolls = document.documentElement.scrollWidth > innerWidth ? ' page scrolls' : '';
  return out.slice(0, 5).join(' ') + scrolls;
})())";

}  // namespace ashlar::testing
