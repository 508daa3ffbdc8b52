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

/** Whether a text has anything that Markdown would change. */
export const hasMarkdown = (text: string): boolean => SIGNS.test(text);

const inside = (tokens: Token[] | undefined): ReactNode => (tokens ?? []).map((token, place) => <Fragment key={place}>{show(token as MarkedToken)}</Fragment>);

function Link({ token }: { token: Tokens.Link }): ReactNode {
  if (!ADDRESS.test(token.href)) return token.raw;
  const own = token.text === token.href || token.href === `mailto:${token.text}` || token.href.replace(/^https?:\/\//, "") === token.text;
  return <><a href={token.href} target="_blank" rel="noopener noreferrer" onClick={(event) => event.stopPropagation()}>{inside(token.tokens)}</a>{!own && <span className="soft"> ({token.href})</span>}</>;
}

function List({ token }: { token: Tokens.List }): ReactNode {
  const items = token.items.map((item, place) => <li key={place}>{item.task ? (item.checked ? "☑ " : "☐ ") : ""}{inside(item.tokens.filter((part) => part.type !== "checkbox"))}</li>);
  return token.ordered ? <ol dir="auto" start={Number(token.start) || 1}>{items}</ol> : <ul dir="auto">{items}</ul>;
}

function Grid({ token }: { token: Tokens.Table }): ReactNode {
  const cell = ({ align, tokens }: Tokens.TableCell, place: number): ReactNode => <td key={place} dir="auto" className={align === "right" ? "num" : ""}>{inside(tokens)}</td>;
  return (
    <div className="scroll" tabIndex={0}>
      <table className="plain">
        <thead><tr>{token.header.map(({ align, tokens }, place) => <th key={place} scope="col" className={align === "right" ? "num" : ""}>{inside(tokens)}</th>)}</tr></thead>
        <tbody>{token.rows.map((row, line) => <tr key={line}>{row.map(cell)}</tr>)}</tbody>
      </table>
    </div>
  );
}

function show(token: MarkedToken): ReactNode {
  switch (token.type) {
    case "space":
    case "def":
    case "checkbox": return null;
    case "heading": return <p dir="auto"><b className={`heading h${token.depth}`}>{inside(token.tokens)}</b></p>;
    case "paragraph": return <p dir="auto">{inside(token.tokens)}</p>;
    case "list": return <List token={token} />;
    case "code": return <pre className="arguments"><code>{token.text}</code></pre>;
    case "blockquote": return <blockquote dir="auto">{inside(token.tokens)}</blockquote>;
    case "table": return <Grid token={token} />;
    case "hr": return <hr />;
    case "br": return <br />;
    case "strong": return <strong>{inside(token.tokens)}</strong>;
    case "em": return <em>{inside(token.tokens)}</em>;
    case "del": return <del>{inside(token.tokens)}</del>;
    case "codespan": return <code>{token.text}</code>;
    case "link": return <Link token={token} />;
    case "text": return token.tokens ? inside(token.tokens) : token.text;
    case "escape": return token.text;
    default: return token.raw;
  }
}

export const Markdown = memo(function Markdown({ text, className = "" }: { text: string; className?: string }): ReactNode {
  return <div className={`markdown ${className}`}>{inside(marked.lexer(text, { gfm: true, breaks: true }))}</div>;
});
