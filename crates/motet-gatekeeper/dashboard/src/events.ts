// The list of events: a stream of the gatekeeper that is read as it comes, and continued after the last event that was seen.

import { send, type SessionEvent } from "./api";
import { byId, el, reconcile } from "./dom";
import { clean, clock, programName } from "./format";
import { fragment } from "./filter";
import { procKey } from "./model";

const MAX_KEPT = 300;
const SHOWN = 80;
const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 15000;
/** The longest line of the stream. */
const MAX_LINE = 1 << 20;

/** The events that the page has seen. */
export class EventList {
    private events: SessionEvent[] = [];
    private last = "";

    /** `changed`: the groups or programs of the session may have changed. */
    constructor(private readonly changed: () => void) {}

    /** Follows the stream for as long as the page is open. */
    async follow(): Promise<never> {
        let pause = FIRST_PAUSE_MS;
        for (;;) {
            try {
                await this.read(() => (pause = FIRST_PAUSE_MS));
            } catch {
                // The gatekeeper is away; the requests for processes say so.
            }
            await new Promise((resolve) => setTimeout(resolve, pause));
            pause = Math.min(MAX_PAUSE_MS, pause * 2);
        }
    }

    private async read(alive: () => void): Promise<void> {
        const path = this.last === "" ? "/v1/events" : `/v1/events?after=${encodeURIComponent(this.last)}`;
        const answer = await send("GET", path, undefined, new AbortController().signal);
        const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
            const part = await reader?.read();
            if (part === undefined || part.done || rest.length > MAX_LINE) {
                await reader?.cancel();
                return;
            }
            alive();
            const lines = (rest + part.value).split("\n");
            rest = lines.pop() ?? "";
            for (const line of lines) {
                if (line.startsWith("data:")) {
                    this.take(JSON.parse(line.slice(5)) as SessionEvent);
                }
            }
            this.render();
        }
    }

    private take(event: SessionEvent): void {
        this.last = event.id;
        if (["view", "program_started", "program_ended", "gap"].includes(event.kind)) {
            this.changed();
        }
        this.events.unshift(event);
        this.events.length = Math.min(this.events.length, MAX_KEPT);
    }

    private render(): void {
        const shown = this.events.slice(0, SHOWN);
        reconcile(byId("events"), shown, (event) => event.id + event.kind, make, () => undefined);
        byId("no-events").hidden = shown.length > 0;
    }
}

function make(event: SessionEvent): Element {
    const { words, href } = describe(event);
    const title = event.command === undefined ? null : clean(event.command.join(" "), 400);
    const what = href === null ? el("span", { title }, words) : el("a", { href, title }, words);
    return el("li", { class: event.kind === "fall" ? "warning" : null }, el("time", {}, clock(event.at_ms)), what);
}

function describe(event: SessionEvent): { words: string; href: string | null } {
    const host = clean(event.host ?? "", 64);
    const place = `${host}:${event.pid ?? "?"}`;
    const process = fragment({ process: procKey(event.host ?? "", event.pid ?? 0) });
    const command = programName((event.command ?? []).join(" "));
    const group = clean(event.group ?? "", 64);
    const within = group === "" ? "" : ` in group ${group}`;
    switch (event.kind) {
        case "view": {
            const joined = (event.joined ?? []).map((member) => `${clean(member.host, 64)}:${member.pid}`).join(", ");
            const parts = [`group ${group}: view ${event.number ?? "?"}, ${event.members ?? "?"} members`];
            if ((event.joined_count ?? 0) > 0) {
                parts.push(`joined: ${joined}${(event.joined_count ?? 0) > (event.joined ?? []).length ? ", …" : ""}`);
            }
            if ((event.left_count ?? 0) > 0) {
                parts.push(`${event.left_count} left`);
            }
            return { words: parts.join("; "), href: fragment({ group: event.group ?? "" }) };
        }
        case "program_started":
            return { words: `started: ${command} (${place})${within}`, href: process };
        case "program_ended":
            return { words: `ended: ${command} (${place})${within}`, href: null };
        case "node_attached":
            return { words: `node of ${place} has attached`, href: process };
        case "node_gone":
            return { words: `node of ${place} is gone`, href: null };
        case "fall":
            return { words: `on TCP: ${clean(event.what ?? "", 160)} (${place}): ${clean(event.reason ?? "", 300)}`, href: process };
        case "gap":
            return { words: "earlier events are not kept any more", href: null };
        default:
            return { words: clean(JSON.stringify(event), 300), href: null };
    }
}
