// The gatekeeper's API: requests, and the types of its answers as far as the page uses them.

import { PAGE_HEADER, pageSecret } from "./login";

export interface Moved { fast: number; tcp: number }
export interface Rate { sent: number; received: number }
export interface Verdict { driver: string; in_use: boolean; reason: string }

export interface Stream {
    fd: number;
    local: string | null;
    peer: string | null;
    connected: boolean;
    peer_pid: number | null;
    path: string;
    state: string;
    reason: number;
    reason_text: string;
    sent: Moved;
    received: Moved;
    spilled: number;
    downgraded: number;
    single_copy: number;
    began: number;
    rate?: Rate;
}

export interface Counts {
    cells_sent: number;
    cells_received: number;
    ring_sent: number;
    ring_received: number;
    frames_sent: number;
    frames_received: number;
    single_copy_bytes: number;
}

export interface MessageLink {
    link: number;
    up: boolean;
    gone: string | null;
    connector: boolean;
    peer: string;
    peer_name: string | null;
    peer_pid: number | null;
    drivers: Verdict[];
    counts: Counts;
    rate?: Rate;
}

export interface MessageNode { number: string; name: string; links: MessageLink[] }

export interface Process {
    pid: number;
    command: string;
    status: string;
    detail?: string;
    streams: Stream[];
    nodes: MessageNode[];
    memory: number;
    mpi?: string;
    in_session?: boolean;
    rate?: Rate;
}

export interface Fall { pid: number; peer_pid: number | null; what: string; reason: string }

export interface HostReport {
    host: string;
    at_ms: number;
    processes: Process[];
    commands: Record<string, string>;
    falls: Fall[];
}

export interface Session { name: string; host: string; version: string }
export interface Host { name: string; up: boolean }
export interface ProcessId { pid: number; started: number }
export interface Member { node: string; host: string; process: ProcessId }
export interface View { group: string; number: number; members: Member[] }
export interface CircuitMember { rank: number; node: string; host: string; process: ProcessId }
export interface Circuit { group: string; name: string; view: number; number: number; size: number; members: CircuitMember[] }
export interface Program { host: string; process: ProcessId; command: string[]; group?: string; rank?: number }

export interface Export {
    name: string;
    directory: string;
    process: number;
    read_only: boolean;
    direct: boolean;
    clients: number;
    open_files: number;
    locks: number;
    requests: number;
    bytes_read: number;
    bytes_written: number;
}

export interface ExportUse {
    process: number;
    front: string;
    export: string;
    at: string;
    direct: boolean;
    why: string;
    open_files: number;
    locks: number;
    requests: number;
    bytes_read: number;
    bytes_written: number;
}

/** An event; which of the further fields it has depends on its kind. */
export interface SessionEvent {
    id: string;
    at_ms: number;
    kind: string;
    host?: string;
    pid?: number;
    group?: string | null;
    number?: number;
    members?: number;
    joined?: { host: string; pid: number }[];
    joined_count?: number;
    left_count?: number;
    command?: string[];
    node?: string;
    what?: string;
    reason?: string;
    circuit?: string;
    view?: number;
    size?: number;
    module?: string;
    how?: string;
}

/** Why a request has no result. */
export class ApiError extends Error {
    constructor(readonly status: number, message: string) {
        super(message);
    }
}

const LIMIT_MS = 8000;

/** Sends a request; returns the answer if it is a success. */
export async function send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = { [PAGE_HEADER]: pageSecret() };
    const options: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
    if (body !== undefined) {
        headers["content-type"] = "application/json";
        options.body = JSON.stringify(body);
    }
    options.signal = signal ?? AbortSignal.timeout(LIMIT_MS);
    const answer = await fetch(path, options);
    if (!answer.ok) {
        const problem: unknown = await answer.json().catch(() => null);
        const why = (problem as { error?: unknown } | null)?.error;
        throw new ApiError(answer.status, typeof why === "string" ? why : `HTTP status ${answer.status}`);
    }
    return answer;
}

/** The object at a path. */
export async function get<T>(path: string): Promise<T> {
    return (await send("GET", path)).json() as Promise<T>;
}
