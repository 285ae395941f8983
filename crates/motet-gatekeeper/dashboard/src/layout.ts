// Where the graph's nodes are: each host is a box, with its processes on a circle, or on a grid if they are many. No randomness, so nothing jumps.

import type { Link, Proc } from "./model";
import { driverName, type DriverName } from "./history";
import { fragment } from "./filter";

/** More processes than this are shown by program. */
const MOST_PROCESSES = 40;
/** More nodes than this on a host become one: "others". */
const MOST_NODES = 30;
const CELL = { width: 92, height: 74 };
/** Room for a label beside a circle. */
const LABEL = 100;
const PADDING = { side: 18, top: 40, bottom: 16 };

/** A process in the graph, or several of one program. */
export interface GraphNode {
    key: string;
    host: string;
    name: string;
    below: string;
    inside: string;
    href: string;
    count: number;
    x: number;
    y: number;
    /** Where its label is: at an angle outside of a circle, or below (`null`). */
    angle: number | null;
}

/** All links between two nodes over one driver. */
export interface GraphEdge {
    key: string;
    from: GraphNode;
    to: GraphNode;
    driver: DriverName;
    rate: number;
    count: number;
    fallen: boolean;
    href: string;
    /** The centre of the box, to which edges within it bend; `null` between two boxes. */
    centre: { x: number; y: number } | null;
    /** Its place among the edges of the same two nodes. */
    lane: number;
}

export interface Box { host: string; x: number; y: number; width: number; height: number }
export interface Layout { width: number; height: number; boxes: Box[]; nodes: GraphNode[]; edges: GraphEdge[] }

interface Placed { nodes: GraphNode[]; width: number; height: number }

/** Lays the graph out in a width. */
export function layOut(hosts: string[], procs: Proc[], links: Link[], width: number): Layout {
    const byProgram = procs.length > MOST_PROCESSES;
    const nodeOf = new Map<string, GraphNode>();
    const placed = new Map<string, Placed>();
    for (const host of hosts) {
        const nodes = nodesOf(host, procs.filter((proc) => proc.host === host), byProgram, nodeOf);
        placed.set(host, place(nodes, Math.max(220, width)));
    }
    const { boxes, height } = arrange(placed, width);
    const edges = edgesOf(links, nodeOf, new Map(boxes.map((box) => [box.host, box])));
    return { width, height, boxes, nodes: [...placed.values()].flatMap((each) => each.nodes), edges };
}

function nodesOf(host: string, procs: Proc[], byProgram: boolean, nodeOf: Map<string, GraphNode>): GraphNode[] {
    const sorted = [...procs].sort((a, b) =>
        (a.groups[0] ?? "~").localeCompare(b.groups[0] ?? "~") || (a.rank ?? 1e9) - (b.rank ?? 1e9) || a.pid - b.pid);
    const bundles = new Map<string, Proc[]>();
    for (const proc of sorted) {
        const key = byProgram ? `${host} ${proc.name}` : proc.key;
        bundles.set(key, [...(bundles.get(key) ?? []), proc]);
    }
    if (bundles.size > MOST_NODES) {
        const weight = (bundle: Proc[]): number => bundle.reduce((sum, proc) => sum + proc.rate, 0);
        const largest = [...bundles].sort((a, b) => weight(b[1]) - weight(a[1]) || b[1].length - a[1].length);
        bundles.clear();
        largest.slice(0, MOST_NODES - 1).forEach(([key, bundle]) => bundles.set(key, bundle));
        bundles.set(`${host} others`, largest.slice(MOST_NODES - 1).flatMap(([, bundle]) => bundle));
    }
    return [...bundles].map(([key, bundle]) => {
        const [first] = bundle;
        const isOne = bundle.length === 1 && first !== undefined;
        const name = key === `${host} others` ? "others" : (first?.name ?? "");
        const node: GraphNode = {
            key,
            host,
            name,
            below: isOne ? String(first.pid) : `${bundle.length} processes`,
            inside: isOne ? (first.rank === null ? "" : String(first.rank)) : String(bundle.length),
            href: isOne ? fragment({ process: first.key }) : fragment(name === "others" ? { host } : { host, q: name }),
            count: bundle.length,
            x: 0,
            y: 0,
            angle: null,
        };
        bundle.forEach((proc) => nodeOf.set(proc.key, node));
        return node;
    });
}

/** Places the nodes of one host, from the corner of its box. */
function place(nodes: GraphNode[], most: number): Placed {
    const inner = most - 2 * PADDING.side;
    const least = Math.max(60, (nodes.length * 62) / (2 * Math.PI));
    const radius = Math.min(190, (inner - 2 * LABEL) / 2);
    if (nodes.length > 2 && nodes.length <= 24 && radius >= least) {
        const own = Math.min(radius, Math.max(least, 70 + 8 * nodes.length));
        const [cx, cy] = [PADDING.side + LABEL + own, PADDING.top + 34 + own];
        nodes.forEach((node, at) => {
            const angle = (2 * Math.PI * at) / nodes.length - Math.PI / 2;
            [node.x, node.y, node.angle] = [cx + own * Math.cos(angle), cy + own * Math.sin(angle), angle];
        });
        return { nodes, width: 2 * cx, height: cy + own + 44 + PADDING.bottom };
    }
    const gap = nodes.length === 2 ? 80 : 0;
    const most_columns = Math.max(1, Math.floor(inner / CELL.width));
    const columns = Math.min(most_columns, Math.max(nodes.length <= 2 ? nodes.length : Math.ceil(Math.sqrt(nodes.length * 1.8)), 1));
    nodes.forEach((node, at) => {
        node.x = PADDING.side + (at % columns) * (CELL.width + gap) + CELL.width / 2;
        node.y = PADDING.top + Math.floor(at / columns) * CELL.height + 24;
    });
    const rows = Math.max(1, Math.ceil(nodes.length / columns));
    const width = Math.max(160, 2 * PADDING.side + columns * CELL.width + (columns - 1) * gap);
    return { nodes, width, height: PADDING.top + rows * CELL.height + PADDING.bottom - 4 };
}

/** Puts the boxes into rows, each row centred, and moves their nodes along. */
function arrange(placed: Map<string, Placed>, width: number): { boxes: Box[]; height: number } {
    const gap = 28;
    const rows: { box: Box; nodes: GraphNode[] }[][] = [[]];
    let used = 0;
    for (const [host, { nodes, width: own, height }] of placed) {
        if (used > 0 && used + own > width) {
            rows.push([]);
            used = 0;
        }
        rows[rows.length - 1]?.push({ box: { host, x: 0, y: 0, width: own, height }, nodes });
        used += own + gap;
    }
    let y = 0;
    for (const row of rows) {
        const all = row.reduce((sum, { box }) => sum + box.width, gap * (row.length - 1));
        const tallest = Math.max(0, ...row.map(({ box }) => box.height));
        let x = Math.max(0, (width - all) / 2);
        for (const { box, nodes } of row) {
            [box.x, box.y] = [x, y + (tallest - box.height) / 2];
            nodes.forEach((node) => {
                node.x += box.x;
                node.y += box.y;
            });
            x += box.width + gap;
        }
        y += tallest + gap;
    }
    return { boxes: rows.flat().map(({ box }) => box), height: Math.max(120, y - gap) };
}

function edgesOf(links: Link[], nodeOf: Map<string, GraphNode>, boxes: Map<string, Box>): GraphEdge[] {
    const edges = new Map<string, GraphEdge>();
    const lanes = new Map<string, number>();
    for (const link of links) {
        const ends = [nodeOf.get(link.from), link.to === null ? undefined : nodeOf.get(link.to)];
        ends.sort((a, b) => ((a?.key ?? "") < (b?.key ?? "") ? -1 : 1));
        const [from, to] = ends;
        if (from === undefined || to === undefined) {
            continue;
        }
        const driver = driverName(link.driver);
        const pair = `${from.key} – ${to.key}`;
        let edge = edges.get(`${pair} ${driver}`);
        if (edge === undefined) {
            const box = from.host === to.host ? boxes.get(from.host) : undefined;
            const centre = box === undefined ? null : { x: box.x + box.width / 2, y: box.y + box.height / 2 };
            const lane = lanes.get(pair) ?? 0;
            lanes.set(pair, lane + 1);
            const href = fragment({ link: link.key });
            edge = { key: `${pair} ${driver}`, from, to, driver, rate: 0, count: 0, fallen: false, href, centre, lane };
            edges.set(edge.key, edge);
        }
        edge.rate += link.rateSent + link.rateReceived;
        edge.count += 1;
        edge.fallen ||= link.fallen;
        if (edge.count === 2) {
            edge.href = fragment(from.count === 1 ? { process: decodeKey(from) } : { host: from.host });
        }
    }
    return [...edges.values()];
}

/** The process of a node that stands for one. */
function decodeKey(node: GraphNode): string {
    return new URLSearchParams(node.href.slice(1)).get("process") ?? "";
}
