/** The list of runs that was shown last: where it is, and which runs stand before and after one in it. */
let address = "#/runs";
let ids: readonly string[] = [];

export function setListed(at: string, shown: readonly string[]): void {
  address = at;
  ids = shown;
}

/** Return the address of the list, with its filters. */
export const listAddress = (): string => address;

/** Return the run that stands so many lines below another one in the list; `null` if there is none. */
export function beside(runId: string, by: number): string | null {
  const at = ids.indexOf(runId);
  return at < 0 ? null : ids[at + by] ?? null;
}
