// The live graph: hosts, processes and links. Links are coloured by driver, and wider at higher rates.

import { byId, reconcile, set, svg, text } from "./dom";
import { rate } from "./format";
import { layOut, type Box, type GraphEdge, type GraphNode } from "./layout";
import type { Link, Proc } from "./model";
import { fragment } from "./filter";

const RADIUS = 15;

/** The graph in its element. */
export class Graph {
    private readonly boxes = svg("g");
    private readonly edges = svg("g");
    private readonly nodes = svg("g");
    private readonly picture = svg("svg", { role: "group", "aria-label": "hosts, processes and links" }, this.boxes, this.edges, this.nodes);
    private last: [string[], Proc[], Link[]] = [[], [], []];
    private width = 0;

    constructor(private readonly place: HTMLElement) {
        place.append(this.picture);
        new ResizeObserver(() => {
            if (this.width !== place.clientWidth) {
                this.show(...this.last);
            }
        }).observe(place);
    }

    /** Shows these hosts, processes and links. */
    show(hosts: string[], procs: Proc[], links: Link[]): void {
        this.last = [hosts, procs, links];
        this.width = this.place.clientWidth;
        if (this.width === 0) {
            return;
        }
        const layout = layOut(hosts, procs, links, this.width);
        set(this.picture, "viewBox", `0 0 ${layout.width} ${layout.height}`);
        set(this.picture, "width", layout.width);
        set(this.picture, "height", layout.height);
        reconcile(this.boxes, layout.boxes, (box) => box.host, makeBox, updateBox);
        reconcile(this.edges, layout.edges, (edge) => edge.key, makeEdge, updateEdge);
        reconcile(this.nodes, layout.nodes, (node) => node.key, makeNode, updateNode);
    }
}

/** Makes the graph of the page. */
export function makeGraph(): Graph {
    return new Graph(byId("graph"));
}

function makeBox(): Element {
    return svg("a", { class: "box" }, svg("rect", { rx: 14 }), svg("text"));
}

function updateBox(element: Element, box: Box): void {
    const [rect, label] = [element.children[0], element.children[1]];
    if (rect === undefined || label === undefined) {
        return;
    }
    set(element, "href", fragment({ host: box.host }));
    set(rect, "x", box.x);
    set(rect, "y", box.y);
    set(rect, "width", box.width);
    set(rect, "height", box.height);
    set(label, "x", box.x + 16);
    set(label, "y", box.y + 24);
    text(label, box.host);
}

function makeEdge(): Element {
    return svg("a", { class: "edge" }, svg("title"), svg("path", { class: "hit" }), svg("path", { class: "line" }));
}

function updateEdge(element: Element, edge: GraphEdge): void {
    const [title, hit, line] = [...element.children];
    if (title === undefined || hit === undefined || line === undefined) {
        return;
    }
    const what = edge.count === 1 ? "1 link" : `${edge.count} links`;
    const words = `${edge.from.name} – ${edge.to.name}: ${what} over ${edge.driver}, ${rate(edge.rate)}`;
    set(element, "href", edge.href);
    set(element, "aria-label", words);
    set(element, "class", `edge ${edge.driver}${edge.fallen ? " fallen" : ""}${edge.rate < 1 ? " idle" : ""}`);
    text(title, words);
    set(hit, "d", curve(edge));
    set(line, "d", curve(edge));
    set(line, "stroke-width", edge.rate < 1 ? 1.25 : Math.min(9, 1.5 + Math.max(0, Math.log10(edge.rate / 1000)) * 1.1).toFixed(1));
}

/** The line of an edge: bent towards the centre of its box, beside other edges of the same two nodes. */
function curve({ from, to, centre, lane }: GraphEdge): string {
    if (from === to) {
        return `M ${from.x - 6} ${from.y - 12} C ${from.x - 26} ${from.y - 44}, ${from.x + 26} ${from.y - 44}, ${from.x + 6} ${from.y - 12}`;
    }
    const [mx, my] = [(from.x + to.x) / 2, (from.y + to.y) / 2];
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    const length = Math.max(1, Math.hypot(dx, dy));
    const side = lane * 18 + (centre === null ? 14 : 0);
    const [bx, by] = centre === null ? [0, 0] : [(centre.x - mx) * 0.14, (centre.y - my) * 0.14];
    const [cx, cy] = [mx + bx - (dy / length) * side, my + by + (dx / length) * side];
    return `M ${round(from.x)} ${round(from.y)} Q ${round(cx)} ${round(cy)} ${round(to.x)} ${round(to.y)}`;
}

const round = (value: number): string => value.toFixed(1);

function makeNode(): Element {
    return svg("a", { class: "node" }, svg("circle"), svg("text", { class: "inside" }), svg("text", { class: "name" }), svg("text", { class: "below" }));
}

function updateNode(element: Element, node: GraphNode): void {
    const [circle, inside, name, below] = [...element.children];
    if (circle === undefined || inside === undefined || name === undefined || below === undefined) {
        return;
    }
    const radius = RADIUS + (node.count > 1 ? Math.min(6, Math.sqrt(node.count)) : 0);
    set(element, "href", node.href);
    set(element, "aria-label", `${node.name}, ${node.below}, on ${node.host}`);
    set(circle, "cx", round(node.x));
    set(circle, "cy", round(node.y));
    set(circle, "r", round(radius));
    const label = node.name.length > 13 ? `${node.name.slice(0, 12)}…` : node.name;
    const [dx, dy, anchor] = labelPlace(node.angle, radius);
    const lines: [Element, string, number, number, string][] = [
        [inside, node.inside, 0, 4, "middle"],
        [name, label, dx, dy, anchor],
        [below, node.below, dx, dy + 13, anchor],
    ];
    for (const [line, words, right, down, align] of lines) {
        set(line, "x", round(node.x + right));
        set(line, "y", round(node.y + down));
        set(line, "text-anchor", align);
        text(line, words);
    }
}

/** Where the two lines of a label begin, from the middle of the node: below it, or outside of the circle that it is on. */
function labelPlace(angle: number | null, radius: number): [number, number, string] {
    if (angle === null) {
        return [0, radius + 15, "middle"];
    }
    const [x, y] = [Math.cos(angle), Math.sin(angle)];
    if (Math.abs(x) < 0.35) {
        return [0, y < 0 ? -radius - 19 : radius + 15, "middle"];
    }
    return [x * (radius + 7), y * (radius + 7) - 2, x > 0 ? "start" : "end"];
}
