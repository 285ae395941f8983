// The tables of links and of processes, and the groups with their circuits.

import type { Circuit } from "./api";
import { memberItem, more, showCircuits, showMembers } from "./circuits";
import { byId, el, reconcile, set, text } from "./dom";
import { fragment, type Filter } from "./filter";
import { bytes, clean, rate } from "./format";
import { driverName } from "./history";
import { procKey, type Link, type Model, type Proc } from "./model";
import { Table, type Column } from "./table";

/** Sorting by the exact rate would move rows each second: rates within a factor of four count as equal. */
const calm = (perSecond: number): number => (perSecond < 1 ? 0 : 1 + Math.floor(Math.log2(perSecond) / 2));

const counted = (count: number | null): string => (count === null ? "–" : bytes(count));

/** Makes a cell a link with this text and address. */
function anchor(cell: HTMLElement, words: string, href: string): void {
    let link = cell.firstElementChild;
    if (link === null) {
        link = el("a");
        cell.append(link);
    }
    set(link, "href", href);
    text(link, words);
}

/** The table of links. `expanded`: the key of the link whose details are shown. */
export function linkTable(expanded: () => string, hosts: () => number): Table<Link> {
    const where = (key: string | null): string =>
        key === null ? "" : hosts() > 1 ? ` ${key.replace("/", ":")}` : ` ${key.split("/").pop() ?? ""}`;
    const columns: Column<Link>[] = [
        {
            key: "from", title: "Process", by: (link) => link.fromName + link.from,
            show: (cell, link) => anchor(cell, link.fromName + where(link.from), fragment({ process: link.from })),
        },
        {
            key: "to", title: "Peer", by: (link) => link.toName + (link.to ?? ""),
            show: (cell, link) => {
                const href = link.to === null ? fragment({ q: link.toName }) : fragment({ process: link.to });
                anchor(cell, link.toName + where(link.to), href);
            },
        },
        {
            key: "path", title: "Path", by: (link) => link.driver,
            show: (cell, link) => {
                set(cell, "class", `path ${driverName(link.driver)}`);
                text(cell, link.driver);
            },
        },
        {
            key: "rate", title: "Rate", number: true, by: (link) => calm(link.rateSent + link.rateReceived),
            show: (cell, link) => text(cell, rate(link.rateSent + link.rateReceived)),
        },
        { key: "sent", title: "Sent", number: true, by: (link) => link.sent ?? -1, show: (cell, link) => text(cell, counted(link.sent)) },
        {
            key: "received", title: "Received", number: true, by: (link) => link.received ?? -1,
            show: (cell, link) => text(cell, counted(link.received)),
        },
        {
            key: "reason", title: "Reason", by: (link) => link.reason,
            show: (cell, link) => anchor(cell, link.reason === "" ? link.state : link.reason, fragment({ link: link.key })),
        },
    ];
    const detail = (link: Link): string[] | null => (link.key === expanded() ? link.details : null);
    const mark = (link: Link): string => (link.fallen ? "fallen" : "");
    return new Table("links", columns, (link) => link.key, "No link at present.", "rate", mark, detail);
}

/** The table of processes. */
export function procTable(): Table<Proc> {
    const columns: Column<Proc>[] = [
        { key: "host", title: "Host", by: (proc) => proc.host, show: (cell, proc) => anchor(cell, proc.host, fragment({ host: proc.host })) },
        {
            key: "pid", title: "Process", by: (proc) => proc.pid,
            show: (cell, proc) => anchor(cell, String(proc.pid), fragment({ process: proc.key })),
        },
        {
            key: "group", title: "Group", by: (proc) => proc.groups.join(" "),
            show: (cell, proc) => {
                const rank = proc.rank === null ? "" : ` ${proc.rank}`;
                const name = proc.groups[0];
                anchor(cell, name === undefined ? "" : proc.groups.join(", ") + rank, fragment({ group: name ?? "" }));
            },
        },
        { key: "rate", title: "Rate", number: true, by: (proc) => calm(proc.rate), show: (cell, proc) => text(cell, rate(proc.rate)) },
        { key: "shm", title: "shm", number: true, by: (proc) => proc.fast, show: (cell, proc) => text(cell, String(proc.fast)) },
        { key: "tcp", title: "tcp", number: true, by: (proc) => proc.slow, show: (cell, proc) => text(cell, String(proc.slow)) },
        {
            key: "memory", title: "Memory", number: true, by: (proc) => proc.memory,
            show: (cell, proc) => text(cell, proc.memory === 0 ? "–" : bytes(proc.memory)),
        },
        {
            key: "command", title: "Command", by: (proc) => proc.command,
            show: (cell, proc) => text(cell, clean(proc.command, 160) + (proc.note === "" ? "" : ` [${proc.note}]`)),
        },
    ];
    return new Table("processes", columns, (proc) => proc.key, "No process is under Motet. Start one with: motet run -- COMMAND", "rate");
}

interface Group { name: string; number: number; members: ReturnType<typeof memberItem>[]; circuits: Circuit[]; programs: number }

/** Shows the groups, each with its view and its circuits: the members by rank. */
export function showGroups(model: Model, filter: Filter): void {
    const groups = new Map<string, Group>();
    for (const view of model.groups) {
        const members = view.members.map((member, rank) => memberItem(rank, member.host, member.process.pid));
        const circuits = model.circuits.get(view.group) ?? [];
        groups.set(view.group, { name: view.group, number: view.number, members, circuits, programs: 0 });
    }
    for (const program of model.programs) {
        if (program.group !== undefined) {
            const known = groups.get(program.group) ?? { name: program.group, number: 0, members: [], circuits: [], programs: 0 };
            known.programs += 1;
            groups.set(program.group, known);
        }
    }
    const shown = [...groups.values()].filter((group) => filter.group === "" || group.name === filter.group);
    shown.sort((a, b) => (a.name < b.name ? -1 : 1));
    reconcile(byId("groups"), shown, (group) => group.name, makeGroup, updateGroup);
    byId("no-groups").hidden = shown.length > 0;
}

function makeGroup(): Element {
    return el("article", { class: "group" }, el("h3", {}, el("a")), el("p"), el("ol"), el("div", { class: "circuits" }));
}

function updateGroup(element: Element, group: Group): void {
    const [heading, about, list, circuits] = [...element.children];
    const link = heading?.firstElementChild;
    if (link === null || link === undefined || about === undefined || list === undefined || circuits === undefined) {
        return;
    }
    set(link, "href", fragment({ group: group.name }));
    text(link, clean(group.name, 64));
    const view = group.number === 0 ? "no view yet" : `view ${group.number}, ${group.members.length} members`;
    text(about, `${view}, ${group.programs} programs, ${group.circuits.length} circuits${more(group.circuits)}`);
    showMembers(list, group.members.slice(0, 64));
    showCircuits(circuits, group.circuits);
}

/** Shows what needs attention: falls to TCP, and hosts that do not answer. */
export function showWarnings(model: Model): void {
    const falls = model.falls.map((fall) => ({
        words: `On TCP: ${clean(fall.what, 160)} (${clean(fall.host, 64)}:${fall.pid}): ${clean(fall.reason, 300)}`,
        href: fragment({ process: procKey(fall.host, fall.pid) }),
    }));
    const silent = [...model.silent].map(([host, why]) => ({
        words: `Host ${clean(host, 64)} does not answer: ${clean(why, 200)}`,
        href: fragment({ host }),
    }));
    const all = [...silent, ...falls];
    const shown = all.slice(0, 6);
    if (all.length > shown.length) {
        shown.push({ words: `and ${all.length - shown.length} more`, href: "#" });
    }
    reconcile(byId("warnings"), shown, (item) => item.words, (item) => el("li", {}, el("a", {}, item.words)), (element, item) => {
        const link = element.firstElementChild;
        if (link !== null) {
            set(link, "href", item.href);
        }
    });
    byId("warnings").hidden = shown.length === 0;
}
