// Server-sent events, read from a body as it arrives (WHATWG HTML, "Server-sent events").
//
// The browser's EventSource would do but for one thing: it does not say why a stream was refused,
// and a wrong key is not a broken line.

export interface ServerEvent {
  event: string;
  data: string;
  id: string | null;
}

/** Takes text in pieces of any size and gives back the events that are whole. */
export class EventParser {
  private rest = "";
  private event = "";
  private data: string[] = [];
  private id: string | null = null;

  push(piece: string): ServerEvent[] {
    const text = this.rest + piece;
    const lines = text.split(/\r\n|\n|\r(?!$)/); // a CR at the end may be half of a CRLF
    this.rest = lines.pop() ?? "";
    const events: ServerEvent[] = [];
    for (const line of lines) {
      const event = this.line(line);
      if (event !== null) events.push(event);
    }
    return events;
  }

  private line(line: string): ServerEvent | null {
    if (line === "") return this.end();
    const colon = line.indexOf(":");
    if (colon === 0) return null; // a comment keeps the line open
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.event = value;
    else if (field === "data") this.data.push(value);
    else if (field === "id") this.id = value;
    return null;
  }

  private end(): ServerEvent | null {
    const whole = { event: this.event || "message", data: this.data.join("\n"), id: this.id };
    const empty = this.data.length === 0;
    this.event = "";
    this.data = [];
    return empty ? null : whole;
  }
}
