/** The frame of all pages: the bar at the top, the keys that work everywhere, and the page that the address names. */
import { Component, useState, type ReactNode } from "react";
import { listKeys, useKeys } from "./keys";
import { Dialog, Status, useTitle } from "./parts/basics";
import { PAGES } from "./pages";
import { go, usePlace } from "./router";
import { isLive, title } from "./source";

const THEME = "treadle.theme";
const themes = ["system", "light", "dark"] as const;
type Theme = (typeof themes)[number];

function readTheme(): Theme {
  try {
    return themes.find((name) => name === localStorage.getItem(THEME)) ?? "system";
  } catch {
    return "system";
  }
}

function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState(readTheme);
  document.documentElement.dataset.theme = theme;
  return [theme, () => {
    const next = themes[(themes.indexOf(theme) + 1) % themes.length] as Theme;
    try {
      localStorage.setItem(THEME, next);
    } catch {
      // The choice then holds until the page is closed.
    }
    setTheme(next);
  }];
}

/** Shows what went wrong in a page, so that the others still work. */
class Guard extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };
  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }
  override render(): ReactNode {
    return this.state.error ? <Status error={this.state.error} /> : this.props.children;
  }
}

function KeyList({ onClose }: { onClose: () => void }): ReactNode {
  const [keys] = useState(listKeys);
  return (
    <Dialog title="Keys" onClose={onClose}>
      <div className="keys">
        {keys.map((key) => (
          <div key={key.key}>
            <span>{key.key.split(" ").map((part, place) => <kbd key={place}>{part}</kbd>)}</span>
            <span>{key.about}</span>
          </div>
        ))}
      </div>
      <div className="ends"><button onClick={onClose}>Close</button></div>
    </Dialog>
  );
}

export function App(): ReactNode {
  const place = usePlace();
  const [theme, nextTheme] = useTheme();
  const [showsKeys, setShowsKeys] = useState(false);
  const page = PAGES.find((item) => item.name === place.path[0]);
  const [name = "", ...rest] = place.path;
  useTitle(page?.hasOwnTitle ? null : !isLive ? title() : [page?.title || `${name.slice(0, 1).toUpperCase()}${name.slice(1)}`, ...rest].join(" "));
  const offered = PAGES.filter((item) => item.title && item.isOffered());
  useKeys([
    { key: "?", about: "Show the keys", run: () => setShowsKeys(true) },
    ...offered.map((item) => ({ key: `g ${item.key}`, about: `Go to ${item.title}`, run: () => go(`#/${item.name}`) })),
    { key: "T", about: "Change between light, dark and the system's choice", run: nextTheme },
    { key: "/", about: "Search", run: () => document.querySelector<HTMLElement>("input[type=search]")?.focus() },
    { key: "Escape", about: "", run: () => (document.activeElement as HTMLElement | null)?.blur(), inText: true },
  ]);
  return (
    <div className="shell">
      <header className="top">
        <span className="name">Treadle</span>
        <nav aria-label="pages">
          {offered.map((item) => (
            <a key={item.name} href={`#/${item.name}`} aria-current={page === item ? "page" : undefined}>{item.title}</a>
          ))}
        </nav>
        <span className="grow" />
        {!isLive && <span className="chip" title="This is one file. Nothing is loaded from elsewhere.">file</span>}
        <button className="plain" onClick={nextTheme} title="Light, dark, or as the system says (T)" aria-label={`Theme: ${theme}`}>
          {theme === "system" ? "◐" : theme === "light" ? "○" : "●"}
        </button>
        <button className="plain" onClick={() => setShowsKeys(true)} title="Keys (?)" aria-label="Show the keys">?</button>
      </header>
      <Guard key={place.path.join("/")}>
        {page ? <page.Page /> : <main className="page"><h1 className="hidden">No such page</h1><Status>There is no page at this address. <a href={`#/${offered[0]?.name ?? "runs"}`}>Go back</a></Status></main>}
      </Guard>
      {showsKeys && <KeyList onClose={() => setShowsKeys(false)} />}
    </div>
  );
}
