/** The words in which two blocks differ that stand side by side. */
import { diffWordsWithSpace } from "diff";

/** Longer texts take too long to compare. */
const LONGEST = 20_000;
const marked = new WeakMap<Element, { texts: string; ranges: Range[] }>();

/** Return the ranges of an element that cover parts of its text, which are given by their places in it. */
function rangesOf(element: Element, parts: [from: number, to: number][]): Range[] {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const ranges: Range[] = [];
  for (let node = walker.nextNode(), start = 0; node; start += node.textContent?.length ?? 0, node = walker.nextNode()) {
    const length = node.textContent?.length ?? 0;
    for (const [from, to] of parts) {
      if (to <= start || from >= start + length) continue;
      const range = new Range();
      range.setStart(node, Math.max(0, from - start));
      range.setEnd(node, Math.min(length, to - start));
      ranges.push(range);
    }
  }
  return ranges;
}

/** Return the ranges of the words in which two elements differ; none if they have nothing in common or are too long. */
export function differing(pair: Element): Range[] {
  const [one = [], two = []] = [...pair.children].map((side) => [...side.querySelectorAll(".said, .thought, .arguments, .result")]);
  const texts = [...one, ...two].map((element) => element.textContent ?? "");
  const known = marked.get(pair);
  if (known?.texts === texts.join("\0")) return known.ranges;
  const ranges = one.flatMap((element) => {
    const alike = (side: Element[]): Element[] => side.filter((candidate) => candidate.className === element.className);
    const other = alike(two)[alike(one).indexOf(element)];
    const [left, right] = [element.textContent ?? "", other?.textContent ?? ""];
    if (!other || left.length + right.length > LONGEST) return [];
    const changes = diffWordsWithSpace(left, right, { timeout: 100 });
    if (!changes?.some((change) => !change.added && !change.removed && change.value.trim())) return [];
    const parts: [gone: [number, number][], come: [number, number][]] = [[], []];
    let [i, j] = [0, 0];
    for (const { value, added, removed } of changes) {
      if (removed) parts[0].push([i, i + value.length]);
      if (added) parts[1].push([j, j + value.length]);
      if (!added) i += value.length;
      if (!removed) j += value.length;
    }
    return [...rangesOf(element, parts[0]), ...rangesOf(other, parts[1])];
  });
  marked.set(pair, { texts: texts.join("\0"), ranges });
  return ranges;
}
