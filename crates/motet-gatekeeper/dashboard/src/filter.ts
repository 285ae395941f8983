// The filter: which host, group, process or link is shown. It is the fragment of the page's address, so that every object has a link of its own.

import type { Link, Model, Proc } from "./model";

/** What is shown; an empty text stands for all. */
export interface Filter { host: string; group: string; process: string; link: string; q: string }

const NAMES = ["host", "group", "process", "link", "q"] as const;

/** The filter of the address. */
export function fromAddress(): Filter {
    const parameters = new URLSearchParams(location.hash.slice(1));
    const filter = { host: "", group: "", process: "", link: "", q: "" };
    for (const name of NAMES) {
        filter[name] = (parameters.get(name) ?? "").slice(0, 200);
    }
    return filter;
}

/** The fragment of a filter. */
export function fragment(filter: Partial<Filter>): string {
    const parameters = new URLSearchParams();
    for (const name of NAMES) {
        const value = filter[name];
        if (value !== undefined && value !== "") {
            parameters.set(name, value);
        }
    }
    return `#${parameters.toString()}`;
}

/** Whether nothing is left out. */
export function isEmpty(filter: Filter): boolean {
    return NAMES.every((name) => filter[name] === "");
}

/** Which processes and links a filter shows. */
export function apply(filter: Filter, model: Model): { procs: Proc[]; links: Link[] } {
    if (isEmpty(filter)) {
        return { procs: model.procs, links: model.links };
    }
    const wanted = filter.q.trim().toLowerCase();
    const matches = (proc: Proc): boolean =>
        (filter.host === "" || proc.host === filter.host) &&
        (filter.group === "" || proc.groups.includes(filter.group)) &&
        (filter.process === "" || proc.key === filter.process) &&
        (wanted === "" || `${proc.host} ${proc.pid} ${proc.command}`.toLowerCase().includes(wanted));
    const shown = new Set(model.procs.filter(matches).map((proc) => proc.key));
    const names = (link: Link): boolean =>
        filter.host === "" && filter.group === "" && filter.process === "" && wanted !== "" &&
        `${link.toName} ${link.details[0] ?? ""} ${link.reason}`.toLowerCase().includes(wanted);
    const links = model.links.filter((link) =>
        filter.link !== "" && link.key !== filter.link
            ? false
            : shown.has(link.from) || (link.to !== null && shown.has(link.to)) || names(link),
    );
    const touched = new Set(links.flatMap((link) => (link.to === null ? [link.from] : [link.from, link.to])));
    const procs = model.procs.filter((proc) => (filter.link === "" && shown.has(proc.key)) || touched.has(proc.key));
    return { procs, links };
}
