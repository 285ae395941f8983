// What the page shows: processes and links of all hosts, from the hosts' reports. Both ends of a link are one row.

import type { Circuit, Counts, HostReport, MessageLink, Process, Program, Rate, Stream, Verdict, View } from "./api";
import { bytes, clean, programName } from "./format";

/** A process of a host. */
export interface Proc {
    key: string;
    host: string;
    pid: number;
    command: string;
    name: string;
    groups: string[];
    rank: number | null;
    memory: number;
    rate: number;
    fast: number;
    slow: number;
    /** Why it has no streams to count; empty for an active process. */
    note: string;
}

/** A stream, or a link between nodes. */
export interface Link {
    key: string;
    kind: "stream" | "link";
    host: string;
    from: string;
    to: string | null;
    fromName: string;
    toName: string;
    driver: string;
    reason: string;
    state: string;
    /** Bytes; `null`: only the kernel has counted them. */
    sent: number | null;
    received: number | null;
    rateSent: number;
    rateReceived: number;
    /** It is on TCP and should not be. */
    fallen: boolean;
    details: string[];
}

/** Everything at one moment. */
export interface Model {
    at: number;
    hosts: string[];
    silent: Map<string, string>;
    procs: Proc[];
    byKey: Map<string, Proc>;
    links: Link[];
    groups: View[];
    /** The circuits of each group. */
    circuits: Map<string, Circuit[]>;
    programs: Program[];
    falls: { host: string; pid: number; what: string; reason: string }[];
}

/** The identity of a process in the page. */
export function procKey(host: string, pid: number): string {
    return `${host}/${pid}`;
}

const NOTES: Record<string, string> = {
    nodes_only: "messages only",
    no_socket_yet: "no TCP connection so far that could be upgraded",
    switched_off: "on TCP",
    not_loaded: "without Motet",
    unreadable: "node file unreadable",
    without_motet: "without Motet",
    hidden: "process of another user",
};

function note(process: Process): string {
    const word = NOTES[process.status] ?? "";
    return process.detail === undefined ? word : `${word}: ${clean(process.detail, 200)}`;
}

const both = (rate: Rate | undefined): number => (rate === undefined ? 0 : rate.sent + rate.received);

/** Bytes of a link of nodes: cells have 64 bytes; the copying side alone counts a single copy. */
function countedBytes(counts: Counts): { sent: number; received: number } {
    return {
        sent: counts.cells_sent * 64 + counts.ring_sent + counts.frames_sent,
        received: counts.cells_received * 64 + counts.ring_received + counts.frames_received + counts.single_copy_bytes,
    };
}

/** Makes the model of reports. `silent`: hosts that do not answer, and why. */
export function build(
    all: HostReport[],
    silent: Map<string, string>,
    groups: View[],
    circuits: Map<string, Circuit[]>,
    programs: Program[],
): Model {
    // Processes of the user that are in no session, or in another one, are left out.
    const reports = all.map((report) => ({ ...report, processes: report.processes.filter((process) => process.in_session !== false) }));
    const memberOf = new Map<string, { groups: string[]; rank: number | null }>();
    for (const program of programs) {
        const known = { groups: program.group === undefined ? [] : [program.group], rank: program.rank ?? null };
        memberOf.set(procKey(program.host, program.process.pid), known);
    }
    for (const view of groups) {
        view.members.forEach((member, rank) => {
            const key = procKey(member.host, member.process.pid);
            const known = memberOf.get(key) ?? { groups: [], rank: null };
            if (!known.groups.includes(view.group)) {
                known.groups.push(view.group);
            }
            known.rank ??= rank;
            memberOf.set(key, known);
        });
    }
    const model: Model = {
        at: Math.max(0, ...reports.map((report) => report.at_ms)),
        hosts: [...reports.map((report) => report.host), ...silent.keys()].sort(),
        silent,
        procs: [],
        byKey: new Map(),
        links: [],
        groups,
        circuits,
        programs,
        falls: [],
    };
    for (const report of reports) {
        for (const process of report.processes) {
            const known = memberOf.get(procKey(report.host, process.pid));
            const fast = process.streams.filter((stream) => stream.path === "shm").length;
            const proc: Proc = {
                key: procKey(report.host, process.pid),
                host: report.host,
                pid: process.pid,
                command: clean(process.command, 400),
                name: programName(process.command),
                groups: known?.groups ?? [],
                rank: known?.rank ?? null,
                memory: process.memory,
                rate: both(process.rate),
                fast,
                slow: process.streams.length - fast,
                note: note(process),
            };
            model.procs.push(proc);
            model.byKey.set(proc.key, proc);
        }
        for (const fall of report.falls.filter((each) => model.byKey.has(procKey(report.host, each.pid)))) {
            model.falls.push({ host: report.host, pid: fall.pid, what: fall.what, reason: fall.reason });
        }
    }
    const nodes = nodeOwners(reports);
    const ends = streamOwners(reports);
    for (const report of reports) {
        model.links.push(...streamsOf(report, ends), ...linksOf(report, nodes));
    }
    return model;
}

/** The processes of nodes, by the number of the node. */
function nodeOwners(reports: HostReport[]): Map<string, { key: string; name: string }> {
    const owners = new Map<string, { key: string; name: string }>();
    for (const report of reports) {
        for (const process of report.processes) {
            for (const node of process.nodes) {
                owners.set(node.number, { key: procKey(report.host, process.pid), name: programName(process.command) });
            }
        }
    }
    return owners;
}

/** The identity of one end of a stream. Loopback addresses mean something on their own host only. */
function endKey(host: string, local: string | null, peer: string | null): string {
    const isLoopback = /^(127\.|\[::1\])/.test(peer ?? "");
    return `${isLoopback ? host : ""} ${local ?? "?"} to ${peer ?? "?"}`;
}

/** The processes at the ends of streams. A stream on TCP does not know its peer's process, but the other end is listed as well. */
function streamOwners(reports: HostReport[]): Map<string, { key: string; name: string }> {
    const owners = new Map<string, { key: string; name: string }>();
    for (const report of reports) {
        for (const process of report.processes) {
            for (const stream of process.streams.filter((each) => each.local !== null && each.peer !== null)) {
                const owner = { key: procKey(report.host, process.pid), name: programName(process.command) };
                owners.set(endKey(report.host, stream.local, stream.peer), owner);
            }
        }
    }
    return owners;
}

/** The streams of a host. Of two ends the one that connected is the row; the other one adds its reason if that is the one on TCP. */
function streamsOf(report: HostReport, owners: Map<string, { key: string; name: string }>): Link[] {
    const rows = new Map<string, Link>();
    const each = report.processes.flatMap((process) => process.streams.map((stream) => ({ process, stream })));
    each.sort((a, b) => Number(b.stream.connected) - Number(a.stream.connected));
    const fallen = new Set(report.falls.map((fall) => `${fall.pid} ${fall.what}`));
    for (const { process, stream } of each) {
        const what = `${stream.local ?? "?"} to ${stream.peer ?? "?"}`;
        const isFallen = fallen.has(`${process.pid} ${what}`);
        const own = procKey(report.host, process.pid);
        const peer = owners.get(endKey(report.host, stream.peer, stream.local));
        const far = rows.get(endKey(report.host, stream.peer, stream.local));
        if (far !== undefined && !stream.connected && far.to === own && peer !== undefined) {
            far.fallen ||= isFallen;
            if (far.driver === "shm" && stream.path === "tcp") {
                far.driver = stream.path;
                far.reason = clean(stream.reason_text, 300);
            }
            continue;
        }
        const key = endKey(report.host, stream.local, stream.peer);
        const unique = rows.has(key) ? `${key} ${own}.${stream.fd}` : key;
        rows.set(unique, streamRow(report, process, stream, peer, `${report.host} ${unique.trim()}`, isFallen));
    }
    return [...rows.values()];
}

function streamRow(
    report: HostReport,
    process: Process,
    stream: Stream,
    owner: { key: string; name: string } | undefined,
    key: string,
    fallen: boolean,
): Link {
    const pid = stream.peer_pid;
    const command = pid === null ? undefined : report.commands[String(pid)];
    const peerName = command === undefined ? clean(stream.peer ?? "?", 60) : programName(command);
    const counted = (moved: { fast: number; tcp: number }): number | null =>
        stream.state !== "upgraded" && moved.fast + moved.tcp === 0 ? null : moved.fast + moved.tcp;
    const shown = (moved: { fast: number; tcp: number }): string => `shm ${bytes(moved.fast)}, tcp ${bytes(moved.tcp)}`;
    return {
        key,
        kind: "stream",
        host: report.host,
        from: procKey(report.host, process.pid),
        to: owner?.key ?? (pid === null ? null : procKey(report.host, pid)),
        fromName: programName(process.command),
        toName: owner?.name ?? peerName,
        driver: stream.path,
        reason: clean(stream.reason_text, 300),
        state: stream.state,
        sent: counted(stream.sent),
        received: counted(stream.received),
        rateSent: stream.rate?.sent ?? 0,
        rateReceived: stream.rate?.received ?? 0,
        fallen,
        details: [
            `stream ${stream.local ?? "?"} to ${stream.peer ?? "?"}, descriptor ${stream.fd}, ` +
                `${stream.connected ? "connected" : "accepted"} by process ${process.pid}; state: ${stream.state}`,
            `sent: ${shown(stream.sent)}; received: ${shown(stream.received)}`,
            `${stream.spilled} spills to TCP, ${stream.downgraded} downgrades, ${stream.single_copy} single copies`,
        ],
    };
}

/** The links of nodes of a host. Both ends are one row, also if they are on two hosts: the connector's. */
function linksOf(report: HostReport, nodes: Map<string, { key: string; name: string }>): Link[] {
    const rows: Link[] = [];
    for (const process of report.processes) {
        for (const node of process.nodes) {
            for (const link of node.links) {
                const peer = nodes.get(link.peer);
                if (link.connector || peer === undefined) {
                    rows.push(linkRow(report, process, node.number, link, peer));
                }
            }
        }
    }
    return rows;
}

function linkRow(
    report: HostReport,
    process: Process,
    node: string,
    link: MessageLink,
    peer: { key: string; name: string } | undefined,
): Link {
    const used: Verdict | undefined = link.drivers.find((verdict) => verdict.in_use);
    const moved = countedBytes(link.counts);
    const fallen = report.falls.some(
        (fall) => fall.pid === process.pid && fall.what === `link to ${link.peer_name ?? link.peer}`,
    );
    return {
        key: `${node} ${link.link} ${link.peer}`,
        kind: "link",
        host: report.host,
        from: procKey(report.host, process.pid),
        to: peer?.key ?? null,
        fromName: programName(process.command),
        toName: peer?.name ?? clean(link.peer_name ?? link.peer.slice(0, 8), 40),
        driver: clean(used?.driver ?? "?", 16),
        reason: clean(link.gone ?? used?.reason ?? "", 300),
        state: link.up ? "up" : "gone",
        sent: moved.sent,
        received: moved.received,
        rateSent: link.rate?.sent ?? 0,
        rateReceived: link.rate?.received ?? 0,
        fallen,
        details: [
            `link ${link.link} of node ${clean(node, 32)} to ${clean(link.peer_name ?? link.peer, 64)}`,
            ...link.drivers.map((verdict) => {
                const word = verdict.in_use ? "in use" : "rejected";
                return `${word}: ${clean(verdict.driver, 16)}: ${clean(verdict.reason, 300)}`;
            }),
        ],
    };
}
