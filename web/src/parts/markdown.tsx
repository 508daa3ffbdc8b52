/**
 * Markdown of answers as elements. No HTML in it is read as HTML, and no image is loaded: both stay text, and a link
 * shows where it leads.
 */
import { marked, type MarkedToken, type Token, type Tokens } from "marked";
import { Fragment, memo, useSyncExternalStore, type ReactNode } from "react";

const CHOICE = "treadle.markdown";
const SIGNS = /[*_`#|~[>]|^\s*(?:[-+]|\d+[.)])\s|https?:\/\//m;
const ADDRESS = /^(?:https?:\/\/|mailto:)/i;

const listeners = new Set<() => void>();
let isLaidOut = true;
try {
  isLaidOut = localStorage.getItem(CHOICE) !== "no";
} catch {
  // Without a place for the choice, Markdown is laid out.
}

function toggle(): void {
  isLaidOut = !isLaidOut;
  try {
    localStorage.setItem(CHOICE, isLaidOut ? "yes" : "no");
  } catch {
    // The choice then holds until the page is closed.
  }
  listeners.forEach((listener) => listener());
}

/** Return whether Markdown is laid out, and what changes that. */
export function useMarkdown(): [boolean, () => void] {
  return [useSyncExternalStore((listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, () => isLaidOut), toggle];
}

/** Whatever stands deeper is shown as it was written: a page fails at elements within thousands of others. */
const DEEPEST = 40;
/** Longer texts are shown as they were written, because some take too long to read. */
const LONGEST = 20_000;

/** Return tokens as elements. `depth` is the number of elements around them. */
const inside = (tokens: Token[] | undefined, depth: number): ReactNode => (tokens ?? []).map((token, place) => <Fragment key={place}>{depth < DEEPEST ? show(token as MarkedToken, depth + 1) : token.raw}</Fragment>);

function link(token: Tokens.Link, depth: number): ReactNode {
  if (!ADDRESS.test(token.href)) return token.raw;
  const own = token.text === token.href || token.href === `mailto:${token.text}` || token.href.replace(/^https?:\/\//, "") === token.text;
  return <><a href={token.href} target="_blank" rel="noopener noreferrer" onClick={(event) => event.stopPropagation()}>{inside(token.tokens, depth)}</a>{!own && <span className="soft"> ({token.href})</span>}</>;
}

function list(token: Tokens.List, depth: number): ReactNode {
  const items = token.items.map((item, place) => <li key={place}>{item.task ? (item.checked ? "☑ " : "☐ ") : ""}{inside(item.tokens.filter((part) => part.type !== "checkbox"), depth)}</li>);
  return token.ordered ? <ol dir="auto" start={Number(token.start) || 1}>{items}</ol> : <ul dir="auto">{items}</ul>;
}

function grid(token: Tokens.Table, depth: number): ReactNode {
  const cell = ({ align, tokens }: Tokens.TableCell, place: number): ReactNode => <td key={place} dir="auto" className={align === "right" ? "num" : ""}>{inside(tokens, depth)}</td>;
  return (
    <div className="scroll" tabIndex={0}>
      <table className="plain">
        <thead><tr>{token.header.map(({ align, tokens }, place) => <th key={place} scope="col" className={align === "right" ? "num" : ""}>{inside(tokens, depth)}</th>)}</tr></thead>
        <tbody>{token.rows.map((row, line) => <tr key={line}>{row.map(cell)}</tr>)}</tbody>
      </table>
    </div>
  );
}

function show(token: MarkedToken, depth: number): ReactNode {
  switch (token.type) {
    case "space":
    case "checkbox": return null;
    case "heading": return <p dir="auto"><b className={`heading h${token.depth}`}>{inside(token.tokens, depth)}</b></p>;
    case "paragraph": return <p dir="auto">{inside(token.tokens, depth)}</p>;
    case "list": return list(token, depth);
    case "code": return <pre className="arguments"><code>{token.text}</code></pre>;
    case "blockquote": return <blockquote dir="auto">{inside(token.tokens, depth)}</blockquote>;
    case "table": return grid(token, depth);
    case "hr": return <hr />;
    case "br": return <br />;
    case "strong": return <strong>{inside(token.tokens, depth)}</strong>;
    case "em": return <em>{inside(token.tokens, depth)}</em>;
    case "del": return <del>{inside(token.tokens, depth)}</del>;
    case "codespan": return <code>{token.text}</code>;
    case "link": return link(token, depth);
    case "text": return token.tokens ? inside(token.tokens, depth) : token.text;
    case "escape": return token.text;
    default: return token.raw;
  }
}

/** Return the parts of a text; `null` if it has no Markdown, is too long, or is nested too deeply to be read. */
function read(text: string): Token[] | null {
  try {
    return text.length > LONGEST || !SIGNS.test(text) ? null : marked.lexer(text, { gfm: true, breaks: true });
  } catch {
    return null;
  }
}

export const Markdown = memo(function Markdown({ text, className = "" }: { text: string; className?: string }): ReactNode {
  const tokens = read(text);
  return tokens ? <div className={`markdown ${className}`}>{inside(tokens, 0)}</div> : <pre className={className}>{text}</pre>;
});
