/** Small parts that several pages use: chips, states of loading, dialogs and copying. */
import { useEffect, useRef, type ReactNode } from "react";

export type Tone = "" | "good" | "bad" | "warn" | "accent";

export function Chip({ tone = "", title, children, moves = false, dot = false }: { tone?: Tone; title?: string; children: ReactNode; moves?: boolean; dot?: boolean }): ReactNode {
  return (
    <span className={`chip ${tone}`} title={title}>
      {(dot || moves) && <span className={`dot${moves ? " moves" : ""}`} />}
      {children}
    </span>
  );
}

/** Says that data comes, why it does not come, or that there is none. */
export function Status({ error, children }: { error?: Error | null; children?: ReactNode }): ReactNode {
  return (
    <div className="status" role={error ? "alert" : "status"}>
      {error ? <><b>This cannot be shown.</b> {error.message}</> : children ?? "Loading …"}
    </div>
  );
}

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }): ReactNode {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => box.current?.showModal(), []);
  return (
    <dialog ref={box} onClose={onClose} aria-label={title} onClick={(event) => { if (event.target === box.current) onClose(); }}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

let told = 0;

/** Show a short message for some seconds. */
export function tell(text: string): void {
  document.querySelector(".toast")?.remove();
  const box = document.createElement("div");
  box.className = "toast";
  box.setAttribute("role", "status");
  box.textContent = text;
  document.body.append(box);
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
