// Reads /metrics (Prometheus' text) and makes rates and latencies of two readings.

// [{name, labels, value}]
export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (found) samples.push({ name: found[1], labels: labels(found[2] ?? ""), value: Number(found[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

const labels = (text) =>
  Object.fromEntries([...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c))]));

export class Reading {
  constructor(samples, time) {
    this.time = time; // milliseconds
    this.byName = grouped(samples);
  }

  all(name, wanted = {}) {
    const matching = ({ labels }) => Object.entries(wanted).every(([key, value]) => labels[key] === value);
    return (this.byName.get(name) ?? []).filter(matching);
  }

  sum(name, wanted) {
    return this.all(name, wanted).reduce((sum, { value }) => sum + value, 0);
  }
}

function grouped(samples) {
  const map = new Map();
  for (const sample of samples) map.set(sample.name, [...(map.get(sample.name) ?? []), sample]);
  return map;
}

// How much a counter grew; one that began anew counts from zero.
export function growth(before, now, name, wanted) {
  const grown = now.sum(name, wanted) - before.sum(name, wanted);
  return grown < 0 ? now.sum(name, wanted) : grown;
}

// The quantile of a histogram's observations between two readings, in seconds; null where there were none. Within a
// bucket they are taken to lie evenly, as Prometheus' histogram_quantile does.
export function quantile(before, now, name, share, wanted = {}) {
  const bounds = [...new Set(now.all(`${name}_bucket`, wanted).map(({ labels }) => labels.le))];
  const counts = bounds
    .map((le) => [Number(le.replace("+Inf", "Infinity")), growth(before, now, `${name}_bucket`, { ...wanted, le })])
    .sort(([one], [other]) => one - other);
  const total = counts.at(-1)?.[1] ?? 0;
  if (!total) return null;
  let low = 0, below = 0;
  for (const [high, count] of counts) {
    if (count >= share * total) return high === Infinity ? low : low + (high - low) * ((share * total - below) / (count - below || 1));
    [low, below] = [high, count];
  }
  return low;
}
