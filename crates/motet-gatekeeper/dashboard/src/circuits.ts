// The circuits of groups: each with its name, its view and its members by rank. A gatekeeper knows those of its own host; here they are joined.

import type { Circuit, CircuitMember } from "./api";
import { el, reconcile, set, text } from "./dom";
import { fragment } from "./filter";
import { clean } from "./format";
import { procKey } from "./model";

/** Circuits of one group that are shown, and members of one circuit. */
const MAX_SHOWN = 32;
const MAX_MEMBERS = 64;

const key = (circuit: Circuit): string => `${circuit.view} ${circuit.number} ${circuit.size} ${circuit.name}`;

/** Joins the circuits of all hosts: the members of one circuit are in one place, by rank. By group; the newest first. */
export function join(hosts: Circuit[][]): Map<string, Circuit[]> {
    const groups = new Map<string, Map<string, Circuit>>();
    for (const circuit of hosts.flat()) {
        const known = groups.get(circuit.group) ?? new Map<string, Circuit>();
        groups.set(circuit.group, known);
        const same = known.get(key(circuit));
        known.set(key(circuit), { ...circuit, members: [...(same?.members ?? []), ...circuit.members] });
    }
    const joined = new Map<string, Circuit[]>();
    for (const [group, circuits] of groups) {
        const sorted = [...circuits.values()].sort((a, b) => b.view - a.view || b.number - a.number);
        sorted.forEach((circuit) => circuit.members.sort((a, b) => a.rank - b.rank));
        joined.set(group, sorted);
    }
    return joined;
}

interface Item { key: string; words: string; href: string }

/** Shows members by rank, each as a link to its process. */
export function showMembers(list: Element, members: readonly Item[]): void {
    reconcile(list, members, (member) => member.key, () => el("li", {}, el("a")), (item, member) => {
        const own = item.firstElementChild;
        if (own !== null) {
            set(own, "href", member.href);
            text(own, member.words);
        }
    });
}

/** A member as an item. Two nodes of one process are two members. */
export function memberItem(rank: number, host: string, pid: number): Item {
    const process = procKey(host, pid);
    return { key: `${rank} ${process}`, words: `${rank}  ${clean(host, 64)}:${pid}`, href: fragment({ process }) };
}

/** Shows the circuits of one group. */
export function showCircuits(place: Element, circuits: readonly Circuit[]): void {
    const shown = circuits.slice(0, MAX_SHOWN);
    const make = (): Element => el("section", { class: "circuit" }, el("h4"), el("p"), el("ol"));
    reconcile(place, shown, key, make, (element, circuit) => {
        const [heading, about, list] = [...element.children];
        if (heading === undefined || about === undefined || list === undefined) {
            return;
        }
        text(heading, clean(circuit.name, 64));
        const count = circuit.members.length;
        const members = count < circuit.size ? `open at ${count} of ${circuit.size} members` : `${circuit.size} members`;
        text(about, `circuit in view ${circuit.view}, ${members}`);
        const item = (member: CircuitMember): Item => memberItem(member.rank, member.host, member.process.pid);
        showMembers(list, circuit.members.slice(0, MAX_MEMBERS).map(item));
    });
}

/** What is left out of the circuits of a group, in words. */
export function more(circuits: readonly Circuit[]): string {
    return circuits.length > MAX_SHOWN ? `, the newest ${MAX_SHOWN} of them shown` : "";
}
