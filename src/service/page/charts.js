// Sparklines and stacked areas, as SVG that stretches with its box.
import {make, rate, setAttribute, setText} from '/ui/dom.js';

const space = 'http://www.w3.org/2000/svg';
export function shape(tag, attributes = {}) {
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const width = 300;

function xOf(i, n, points) {
  // The youngest is at the right edge, however many there are.
  return points <= 1 ? width : width - ((n - 1 - i) * width) / (points - 1);
}

export function spark(hidden = true) {
  const svg = shape('svg', {class: 'spark', viewBox: `0 0 ${width} 24`, preserveAspectRatio: 'none'});
  if (hidden) svg.setAttribute('aria-hidden', 'true');
  svg.append(shape('path', {class: 'area'}), shape('path', {class: 'line'}));
  return svg;
}

// The line grows to the left until there are `most` values.
const windowOf = (values, least, most) => Math.min(most, Math.max(least, values.length));

export function setSpark(svg, values) {
  const points = windowOf(values, 30, 120);
  const shown = values.slice(-points);
  const most = Math.max(...shown, 1e-9);
  const at = shown.map((v, i) => `${xOf(i, shown.length, points).toFixed(1)},${(22.5 - (21 * v) / most).toFixed(1)}`);
  const [area, line] = svg.children;
  setAttribute(line, 'd', at.length > 1 ? `M${at.join('L')}` : '');
  const left = xOf(0, shown.length, points).toFixed(1);
  setAttribute(area, 'd', at.length > 1 ? `M${left},24L${at.join('L')}L${width},24Z` : '');
}

const height = 100;

// An area over time: series are [{name, colour}], rows arrays of as many values. Stacked; mirrored the last of
// them hangs below the others.
export class AreaChart {
  constructor(box, series, label, isMirrored = false) {
    this.isMirrored = isMirrored;
    this.svg = shape('svg', {
      viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label,
    });
    for (const y of [0, 50, 100]) {
      this.svg.append(shape('line', {class: 'grid', x1: 0, x2: width, y1: y, y2: y}));
    }
    this.areas = series.map(({colour}) => {
      const path = shape('path');
      path.style.fill = `var(--${colour})`;
      this.svg.append(path);
      return path;
    });
    this.cursor = shape('line', {class: 'cursor', y1: 0, y2: height, visibility: 'hidden'});
    this.svg.append(this.cursor);
    this.label = make('span', {class: 'top-label'});
    this.axis = make('div', {class: 'axis'}, make('span'), make('span'));
    box.replaceChildren(this.svg, this.label, this.axis);
  }

  // What the left and the right edge stand for.
  setAxis([left, right]) {
    setText(this.axis.firstChild, left);
    setText(this.axis.lastChild, right);
  }

  // `points`: how many fill the width; a window that grows where it is not given.
  set(rows, points = windowOf(rows, 60, 300)) {
    const shown = rows.slice(-points);
    const last = this.isMirrored ? this.areas.length - 1 : -1;
    const sums = shown.map((row) => Math.max(
      row.reduce((sum, v, s) => (s === last ? sum : sum + v), 0), last < 0 ? 0 : row[last]));
    const most = Math.max(...sums, 1e-9);
    setText(this.label, sums.some((sum) => sum > 0) ? `${rate(most)}/s` : '');
    const base = this.isMirrored ? height / 2 : height;
    const y = (v) => (base - ((base - 4) * v) / most).toFixed(2);
    const x = shown.map((_, i) => xOf(i, shown.length, points).toFixed(1));
    let floor = shown.map(() => 0);
    this.areas.forEach((path, s) => {
      if (s === last) floor = shown.map(() => 0);
      const ceiling = shown.map((row, i) => (s === last ? -row[s] : floor[i] + row[s]));
      const up = ceiling.map((v, i) => `${x[i]},${y(v)}`);
      const down = floor.map((v, i) => `${x[i]},${y(v)}`).reverse();
      setAttribute(path, 'd', shown.length > 1 ? `M${up.join('L')}L${down.join('L')}Z` : '');
      floor = ceiling;
    });
  }

  // Where in the chart, from 0 to 1.
  setCursor(part) {
    const x = (part * width).toFixed(1);
    setAttribute(this.cursor, 'x1', x);
    setAttribute(this.cursor, 'x2', x);
    setAttribute(this.cursor, 'visibility', 'visible');
  }
}
