/** Hooks that load data for a page, and say while it comes or why it does not. */
import { useEffect, useState } from "react";
import { get } from "./source";

export interface Loaded<T> {
  data: T | null;
  error: Error | null;
  /** Whether a request is under way. */
  isLoading: boolean;
}

/** Load the answer to a GET request again whenever the address or `version` changes. `null` loads nothing. */
export function useGet<T>(address: string | null, version = 0): Loaded<T> {
  const [found, setFound] = useState<Loaded<T> & { address: string | null }>({ data: null, error: null, isLoading: true, address });
  useEffect(() => {
    if (address === null) return;
    const stop = new AbortController();
    setFound((before) => ({ ...before, address, isLoading: true, data: before.address === address ? before.data : null }));
    get<T>(address, stop.signal)
      .then((data) => setFound({ data, error: null, isLoading: false, address }))
      .catch((error: Error) => {
        if (!stop.signal.aborted) setFound({ data: null, error, isLoading: false, address });
      });
    return () => stop.abort();
  }, [address, version]);
  return address === found.address ? found : { data: null, error: null, isLoading: address !== null };
}
