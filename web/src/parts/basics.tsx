/** Small parts that several pages use: chips, states of loading, dialogs and copying. */
import { useEffect, useLayoutEffect, useRef, useState, type PointerEvent, type ReactNode } from "react";
import { keep, recall } from "../kept";
import { hasToken, RequestFailed, setToken } from "../source";

export type Tone = "" | "good" | "bad" | "warn" | "accent";

export function Chip({ tone = "", title, children, moves = false, dot = false }: { tone?: Tone; title?: string; children: ReactNode; moves?: boolean; dot?: boolean }): ReactNode {
  return (
    <span className={`chip ${tone}`} title={title}>
      {(dot || moves) && <span className={`dot${moves ? " moves" : ""}`} />}
      {children}
    </span>
  );
}

/** Asks for the key of a server that wants one. `refused` says why the key that was given is not valid. */
function AskToken({ refused }: { refused: string }): ReactNode {
  const [text, setText] = useState("");
  return (
    <form className="form status" onSubmit={(event) => { event.preventDefault(); setToken(text.trim()); location.reload(); }}>
      <label htmlFor="token">This server wants a key: open the address that <code>treadle view</code> printed, or give a key of <code>treadle serve</code>.</label>
      {hasToken() && <span className="bad" role="alert">{refused}</span>}
      <div className="row">
        <input id="token" type="password" className="grow" value={text} onChange={(event) => setText(event.target.value)} autoComplete="off" />
        <button className="main" disabled={!text.trim()}>Use the key</button>
      </div>
    </form>
  );
}

/** Says that data comes, why it does not come, or that there is none. */
export function Status({ error, children }: { error?: Error | null; children?: ReactNode }): ReactNode {
  if (error instanceof RequestFailed && error.status === 401) return <AskToken refused={error.message} />;
  return (
    <div className="status" role={error ? "alert" : "status"}>
      {error ? <><b>This cannot be shown.</b> {error.message}</> : children ?? "Loading …"}
    </div>
  );
}

/** Says above what is shown that it does not go on, because the server does not answer or wants another key. */
export function Lost({ error }: { error: Error | null }): ReactNode {
  if (!error || (error instanceof RequestFailed && error.status === 401)) return error && <Status error={error} />;
  return <p className="why bad" role="alert">Not connected. {error.message}</p>;
}

/** A page whose data comes, or does not come. */
export function Waiting({ title, error, children }: { title: string; error?: Error | null; children?: ReactNode }): ReactNode {
  return <main className="page"><h1 className="hidden">{title}</h1><Status error={error ?? null}>{children}</Status></main>;
}

/** A dialog, which Escape, its button and a click beside it close. The focus then goes back to where it was. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }): ReactNode {
  const box = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const dialog = box.current;
    dialog?.showModal();
    return () => {
      // A message about what was done is seen after the dialog, too.
      document.body.append(...(dialog?.querySelectorAll(".toast") ?? []));
      dialog?.close();
    };
  }, []);
  // The press counts, and not the click: a text that is selected may end beside the dialog.
  const closeBeside = (event: PointerEvent): void => {
    const { left, right, top, bottom } = event.currentTarget.getBoundingClientRect();
    if (event.clientX < left || event.clientX > right || event.clientY < top || event.clientY > bottom) onClose();
  };
  return (
    <dialog ref={box} onClose={onClose} aria-label={title} onPointerDown={(event) => event.target === box.current && closeBeside(event)}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

/** How long what is scrolled to may take to be there. */
const PATIENCE_MS = 3000;

/** Scroll an element to where it was when this address was left, also before the page was loaded again. */
function keepPlace(element: HTMLElement | null): (() => void) | undefined {
  if (!element) return undefined;
  let address = location.hash;
  const wanted = recall(`scrolled ${address}`, 0);
  const end = performance.now() + PATIENCE_MS;
  let frame = 0;
  const restore = (): void => {
    element.scrollTop = wanted;
    if (Math.abs(element.scrollTop - wanted) > 1 && performance.now() < end) frame = requestAnimationFrame(restore);
  };
  if (wanted) restore();
  const stop = new AbortController();
  const options = { passive: true, signal: stop.signal };
  for (const name of ["wheel", "pointerdown", "touchstart", "keydown"]) element.addEventListener(name, () => cancelAnimationFrame(frame), options);
  let top = wanted;
  const save = (): void => keep(`scrolled ${address}`, top);
  element.addEventListener("scroll", () => { [top, address] = [element.scrollTop, location.hash]; }, options);
  window.addEventListener("pagehide", save, { signal: stop.signal });
  return () => {
    cancelAnimationFrame(frame);
    stop.abort();
    save();
  };
}

/** The part of a page that scrolls, and is found where it was left. */
export function Overview({ label, className = "overview", children }: { label: string; className?: string; children: ReactNode }): ReactNode {
  return <div className={className} ref={keepPlace} tabIndex={0} role="region" aria-label={label}>{children}</div>;
}

/** Name what is shown in the title of the browser's tab; `null` leaves the title as it is. */
export function useTitle(text: string | null): void {
  useEffect(() => {
    if (text !== null) document.title = `${text} · Treadle`;
  }, [text]);
}

let told = 0;

/** Show a short message for some seconds. */
export function tell(text: string): void {
  document.querySelector(".toast")?.remove();
  const box = document.createElement("div");
  box.className = "toast";
  box.setAttribute("role", "status");
  box.textContent = text;
  // What is not in an open dialog lies behind it.
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  clearTimeout(told);
  told = window.setTimeout(() => box.remove(), 4000);
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    tell("copied");
  } catch {
    tell("the browser does not allow copying");
  }
}
