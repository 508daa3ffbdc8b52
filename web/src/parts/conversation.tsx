/** The messages of a row or of a rollout, each result beside its call. */
import { memo, type ReactNode } from "react";
import { pretty } from "../format";
import type { ShownCall, ShownMessage } from "../datatypes";
import "../data.css";

/** A long text may scroll in its box, which the keyboard must reach. */
const reach = (text: string): 0 | undefined => (text.length > 300 ? 0 : undefined);

export function Call({ call }: { call: ShownCall }): ReactNode {
  return (
    <div className={`msg-call ${call.is_error ? "failed" : ""}`}>
      <div className="row wrap">
        <code className="callee">{call.name}</code>
        {call.is_error && <span className="chip bad">error</span>}
        {call.is_simulated && <span className="chip warn" title="No tool ran for this call.">simulated result</span>}
      </div>
      {call.arguments && call.arguments !== "{}" && <pre className="given" tabIndex={reach(call.arguments)}>{pretty(call.arguments, true)}</pre>}
      {call.result !== undefined && <pre className="result" tabIndex={reach(call.result)} aria-label={`result of ${call.name}`}>{call.result || "(empty)"}</pre>}
    </div>
  );
}

export const Message = memo(function Message({ message }: { message: ShownMessage }): ReactNode {
  const calls = message.calls ?? [];
  return (
    <div className={`msg ${message.role}`}>
      <div className="role">{message.role}{message.is_untrained && <span className="chip warn">not trained on</span>}</div>
      {message.thought && <pre className="msg-thought" aria-label="reasoning">{message.thought}</pre>}
      {(message.text || !(message.thought || calls.length)) && <pre className="msg-text" tabIndex={reach(message.text)}>{message.text || "(empty)"}</pre>}
      {calls.map((call, index) => <Call key={index} call={call} />)}
    </div>
  );
});

const signOf = (message: ShownMessage | undefined): string => JSON.stringify(message ?? null);

/** Return the first line in which conversations do not say the same; -1 if there is none. */
export function firstDifference(conversations: ShownMessage[][]): number {
  const most = Math.max(0, ...conversations.map((messages) => messages.length));
  for (let line = 0; line < most; line += 1) if (new Set(conversations.map((messages) => signOf(messages[line]))).size > 1) return line;
  return -1;
}

export const sidesOf = (count: number): { gridTemplateColumns: string } => ({ gridTemplateColumns: `repeat(${count}, minmax(280px, 1fr))` });

/** Conversations side by side, in lines: what they have in common once, then the first difference and all after it. */
export function SideLines({ conversations }: { conversations: ShownMessage[][] }): ReactNode {
  const differs = conversations.length > 1 ? firstDifference(conversations) : -1;
  const most = Math.max(0, ...conversations.map((messages) => messages.length));
  return Array.from({ length: most }, (_, line) => {
    const message = conversations[0]?.[line];
    if (conversations.length > 1 && (differs < 0 || line < differs) && message) return <div key={line} className="sideline common"><div><Message message={message} /></div></div>;
    return (
      <div key={line} className={`sideline ${line === differs ? "differs" : ""}`} style={sidesOf(conversations.length)}>
        {line === differs && <p className="mark">the first difference</p>}
        {conversations.map((messages, side) => {
          const own = messages[line];
          return <div key={side}>{own ? <Message message={own} /> : null}</div>;
        })}
      </div>
    );
  });
}

export function Conversation({ messages }: { messages: ShownMessage[] }): ReactNode {
  return <div className="conversation">{messages.map((message, index) => <Message key={index} message={message} />)}</div>;
}
