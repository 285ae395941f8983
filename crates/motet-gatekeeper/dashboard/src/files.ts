// Remote files: the exports of all hosts, and the mounts and disks that use them. Rates come from two answers.

import { get, type Export, type ExportUse, type Host } from "./api";
import { byId, text } from "./dom";
import type { Filter } from "./filter";
import { bytes, clean, rate } from "./format";
import { Table, type Column } from "./table";

interface Totals { requests: number; bytes_read: number; bytes_written: number }

/** A row of either table: what is exported, or a use of an export. */
interface Row extends Totals {
    key: string;
    host: string;
    pid: number;
    name: string;
    /** Which way an export is used, or what may be done with it. */
    how: string;
    why: string;
    where: string;
    clients: number;
    open: number;
    locks: number;
    /** Per second. */
    requestRate: number;
    readRate: number;
    writeRate: number;
}

/** Shorter times between two answers give no rate. */
const SHORTEST_MS = 500;

function columns(what: string, how: string, where: string, withClients: boolean): Column<Row>[] {
    const clients: Column<Row> = {
        key: "clients", title: "Clients", number: true, by: (row) => row.clients, show: (cell, row) => text(cell, String(row.clients)),
    };
    return [
        { key: "name", title: what, by: (row) => row.name, show: (cell, row) => text(cell, clean(row.name, 64)) },
        { key: "host", title: "Host", by: (row) => row.host, show: (cell, row) => text(cell, clean(row.host, 64)) },
        { key: "pid", title: "Process", number: true, by: (row) => row.pid, show: (cell, row) => text(cell, String(row.pid)) },
        {
            key: "how", title: how, by: (row) => row.how,
            show: (cell, row) => {
                text(cell, clean(row.how, 80));
                cell.title = clean(row.why, 200);
            },
        },
        ...(withClients ? [clients] : []),
        { key: "open", title: "Open files", number: true, by: (row) => row.open, show: (cell, row) => text(cell, String(row.open)) },
        { key: "locks", title: "Locks", number: true, by: (row) => row.locks, show: (cell, row) => text(cell, String(row.locks)) },
        {
            key: "requests", title: "Requests/s", number: true, by: (row) => row.requestRate,
            show: (cell, row) => text(cell, String(Math.round(row.requestRate))),
        },
        { key: "read", title: "Read", number: true, by: (row) => row.bytes_read, show: (cell, row) => text(cell, moved(row.bytes_read, row.readRate)) },
        {
            key: "written", title: "Written", number: true, by: (row) => row.bytes_written,
            show: (cell, row) => text(cell, moved(row.bytes_written, row.writeRate)),
        },
        { key: "where", title: where, by: (row) => row.where, show: (cell, row) => text(cell, clean(row.where, 120)) },
    ];
}

const moved = (total: number, perSecond: number): string => (perSecond < 1 ? bytes(total) : `${bytes(total)}, ${rate(perSecond)}`);

/** The part of the page about remote files. */
export class Files {
    private readonly exports = new Table<Row>("exports", columns("Export", "Access", "Directory", true), (row) => row.key, "No export.", "name");
    private readonly uses = new Table<Row>("export-uses", columns("Uses export", "Way", "At", false), (row) => row.key, "No mount or disk uses an export.", "name");
    private before = new Map<string, Totals & { at: number }>();
    private exported: Row[] = [];
    private used: Row[] = [];

    /** Asks the hosts. One that does not answer has no rows. */
    async ask(hosts: readonly Host[]): Promise<void> {
        const of = async <T>(name: string, path: string): Promise<T[]> =>
            get<T[]>(`/v1/hosts/${encodeURIComponent(name)}/${path}`).catch(() => []);
        const found = await Promise.all(hosts.filter((host) => host.up).map(async ({ name }) => {
            const [exported, used] = await Promise.all([of<Export>(name, "exports"), of<ExportUse>(name, "export-uses")]);
            return { name, exported, used };
        }));
        const now = performance.now();
        const counted = new Map<string, Totals & { at: number }>();
        const row = (key: string, fields: Omit<Row, "key" | "requestRate" | "readRate" | "writeRate">): Row => {
            const last = this.before.get(key);
            const isRecent = last !== undefined && now - last.at < SHORTEST_MS;
            counted.set(key, isRecent ? last : { at: now, requests: fields.requests, bytes_read: fields.bytes_read, bytes_written: fields.bytes_written });
            const since = (count: (totals: Totals) => number): number =>
                last === undefined || isRecent ? 0 : Math.max(0, (count(fields) - count(last)) * 1000 / (now - last.at));
            const requestRate = since((totals) => totals.requests);
            const [readRate, writeRate] = [since((totals) => totals.bytes_read), since((totals) => totals.bytes_written)];
            return { key, ...fields, requestRate, readRate, writeRate };
        };
        this.exported = found.flatMap(({ name: host, exported }) => exported.map((item) => row(`export ${host} ${item.process} ${item.name}`, {
            host, pid: item.process, name: item.name, where: item.directory, clients: item.clients, open: item.open_files, locks: item.locks,
            how: item.read_only ? "read-only" : "read-write",
            why: item.direct ? "programs of its host may use the directory itself" : "programs of its host send messages, too",
            requests: item.requests, bytes_read: item.bytes_read, bytes_written: item.bytes_written,
        })));
        this.used = found.flatMap(({ name: host, used }) => used.map((item) => row(`use ${host} ${item.process} ${item.export} ${item.at}`, {
            host, pid: item.process, name: item.export, where: item.at, clients: 0, open: item.open_files, locks: item.locks,
            how: `${item.front}, ${item.direct ? "directory itself" : "messages"}`, why: item.why,
            requests: item.requests, bytes_read: item.bytes_read, bytes_written: item.bytes_written,
        })));
        this.before = counted;
    }

    /** Shows those of the hosts that the filter leaves. */
    show(filter: Filter): void {
        const shown = (rows: Row[]): Row[] => rows.filter((row) => filter.host === "" || row.host === filter.host);
        const isNone = this.exported.length === 0 && this.used.length === 0;
        byId("no-exports").hidden = !isNone;
        byId("exports").hidden = isNone;
        byId("export-uses").hidden = isNone;
        this.exports.show(shown(this.exported));
        this.uses.show(shown(this.used));
    }
}
