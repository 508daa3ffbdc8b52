/** The keyboard: pages say which keys do what while they are shown, and `?` lists them. */
import { useLayoutEffect, useRef } from "react";

export interface Key {
  /** The key, such as `j`, `Enter` or two after each other, `g r`. */
  key: string;
  /** What it does, for the list of keys; empty for a second key of the same kind. */
  about: string;
  run: () => void;
  /** Whether the key also works while a text is typed. */
  inText?: boolean;
}

const layers: { current: Key[] }[] = [];
let first = "";
let timer = 0;

/** Offer keys as long as the component is shown. Keys of components that were mounted later come first. */
export function useKeys(keys: Key[]): void {
  const box = useRef(keys);
  box.current = keys;
  // Before the component is painted: a key that is pressed as soon as it is seen works.
  useLayoutEffect(() => {
    layers.unshift(box);
    return () => {
      layers.splice(layers.indexOf(box), 1);
    };
  }, []);
}

/** Return the keys that work now, for the list. */
export function listKeys(): Key[] {
  const seen = new Set<string>();
  return layers.flatMap((layer) => layer.current).filter((key) => key.about && !seen.has(key.key) && seen.add(key.key));
}

function isText(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

window.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  // An open dialog has the keys of the browser: Escape closes it, and nothing behind it moves.
  if (document.querySelector("dialog[open]")) return;
  const inText = isText(event.target);
  // A focused button or link has its own Enter and Space.
  if (/^(Enter| )$/.test(event.key) && event.target instanceof Element && event.target.closest("button, a, summary")) return;
  const keys = layers.flatMap((layer) => layer.current).filter((key) => !inText || key.inText);
  const typed = first ? `${first} ${event.key}` : event.key;
  const found = keys.find((key) => key.key === typed) ?? keys.find((key) => key.key === event.key);
  first = "";
  clearTimeout(timer);
  if (found) {
    event.preventDefault();
    found.run();
  } else if (keys.some((key) => key.key.startsWith(`${event.key} `))) {
    first = event.key;
    timer = window.setTimeout(() => (first = ""), 1200);
  }
});
