// The list of events of all hosts. The gatekeeper of the page is followed by a stream that is read as it comes. Those of other hosts are asked every
// other second for what is new: a stream to each would use up the connections that a browser makes to one address. Either way goes on after the last
// event that was seen.

import { send, type Host, type SessionEvent } from "./api";
import { byId, el, reconcile } from "./dom";
import { clean, clock, programName } from "./format";
import { fragment } from "./filter";
import { procKey } from "./model";

const MAX_KEPT = 300;
const SHOWN = 80;
const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 15000;
const OTHERS_INTERVAL_MS = 2000;
/** The longest line of the stream. */
const MAX_LINE = 1 << 20;
/** What every gatekeeper tells of the whole session. */
const OF_SESSION = ["view", "program_started", "program_ended"];
/** What changes the groups, circuits or programs that the page shows. */
const CHANGES = [...OF_SESSION, "circuit_opened", "circuit_closed", "gap"];

/** The events that the page has seen. */
export class EventList {
    private events: SessionEvent[] = [];
    /** The last event of each host that was seen. */
    private readonly last = new Map<string, string>();

    /** `own`: the host of the page's gatekeeper; `hosts`: all; `changed`: the groups, circuits or programs of the session may have changed. */
    constructor(private readonly own: string, private readonly hosts: () => Host[], private readonly changed: () => void) {}

    /** Asks the other hosts for as long as the page is open. */
    async followOthers(): Promise<never> {
        for (;;) {
            const others = this.hosts().filter((host) => host.up && host.name !== this.own);
            // A host that does not answer is named among the warnings.
            await Promise.all(others.map(({ name }) => this.ask(name).catch(() => undefined)));
            if (others.length > 0) {
                this.render();
            }
            await new Promise((resolve) => setTimeout(resolve, OTHERS_INTERVAL_MS));
        }
    }

    private async ask(host: string): Promise<void> {
        const path = `/v1/hosts/${encodeURIComponent(host)}/events?follow=false${this.after("&", host)}`;
        const answer = await (await send("GET", path)).text();
        answer.split("\n").forEach((line) => this.take(line, host));
    }

    private after(mark: string, host: string): string {
        const last = this.last.get(host);
        return last === undefined ? "" : `${mark}after=${encodeURIComponent(last)}`;
    }

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
        const answer = await send("GET", `/v1/events${this.after("?", this.own)}`, undefined, new AbortController().signal);
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
            lines.forEach((line) => this.take(line, this.own));
            this.render();
        }
    }

    /** Takes a line of a host's stream. */
    private take(line: string, host: string): void {
        if (!line.startsWith("data:")) {
            return;
        }
        const event = JSON.parse(line.slice(5)) as SessionEvent;
        this.last.set(host, event.id);
        if (CHANGES.includes(event.kind)) {
            this.changed();
        }
        if (host !== this.own && OF_SESSION.includes(event.kind)) {
            return;
        }
        event.host ??= host;
        // The newest first; hosts are not asked at the same moment.
        const place = this.events.findIndex((known) => known.at_ms <= event.at_ms);
        this.events.splice(place < 0 ? this.events.length : place, 0, event);
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
    return el("li", { class: ["fall", "module_crashed"].includes(event.kind) ? "warning" : null }, el("time", {}, clock(event.at_ms)), what);
}

function describe(event: SessionEvent): { words: string; href: string | null } {
    const host = clean(event.host ?? "", 64);
    const place = `${host}:${event.pid ?? "?"}`;
    const process = fragment({ process: procKey(event.host ?? "", event.pid ?? 0) });
    const command = programName((event.command ?? []).join(" "));
    const group = clean(event.group ?? "", 64);
    const within = group === "" ? "" : ` in group ${group}`;
    const circuit = `circuit ${clean(event.circuit ?? "", 64)} of group ${group}`;
    const module = `module ${clean(event.module ?? "", 64)} on ${host}${within}`;
    const how = event.how === undefined ? "" : `: ${clean(event.how, 160)}`;
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
        case "circuit_opened": {
            const words = `${circuit} opened on ${host}: view ${event.view ?? "?"}, ${event.size ?? "?"} members`;
            return { words, href: fragment({ group: event.group ?? "" }) };
        }
        case "circuit_closed":
            return { words: `${circuit} closed on ${host}`, href: fragment({ group: event.group ?? "" }) };
        case "module_loaded":
        case "module_started":
        case "module_stopped":
        case "module_unloaded":
            return { words: `${module} ${event.kind.slice("module_".length)}${how}`, href: fragment({ host: event.host ?? "" }) };
        case "module_crashed":
            return { words: `${module} has crashed${how}`, href: fragment({ host: event.host ?? "" }) };
        case "gap":
            return { words: `earlier events of host ${host} are not kept any more`, href: null };
        default:
            return { words: clean(JSON.stringify(event), 300), href: null };
    }
}
