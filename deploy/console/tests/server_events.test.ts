import { expect, test } from "vitest";
import { EventParser, type ServerEvent } from "../src/wire/server_events";

const TEXT = "retry: 2000\n\n:\n\nevent: hardware\ndata: {\"a\":1}\n\nid: run:7\r\nevent: happened\r\ndata: one\r\ndata:  two\r\n\r\ndata\n\n";
const WHOLE: ServerEvent[] = [
  { event: "hardware", data: '{"a":1}', id: null },
  { event: "happened", data: "one\n two", id: "run:7" },
  { event: "message", data: "", id: "run:7" },
];

test("events are those of the standard: comments, several lines of data, an id that stays", () => {
  expect(new EventParser().push(TEXT)).toEqual(WHOLE);
});

test("pieces may be cut anywhere, between CR and LF too", () => {
  for (let size = 1; size < 12; size += 1) {
    const parser = new EventParser();
    const events: ServerEvent[] = [];
    for (let at = 0; at < TEXT.length; at += size) events.push(...parser.push(TEXT.slice(at, at + size)));
    expect(events).toEqual(WHOLE);
  }
});

test("an event that has not ended is not told", () => {
  expect(new EventParser().push("event: hardware\ndata: 1\n")).toEqual([]);
});
