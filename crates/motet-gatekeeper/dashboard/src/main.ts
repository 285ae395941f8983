// The page: asks the gatekeepers about once a second, and shows what they say through the filter.

import { ApiError, get, type Circuit, type Host, type HostReport, type Program, type Session, type View } from "./api";
import { makeChart } from "./chart";
import { join } from "./circuits";
import { byId, el, reconcile, set, text } from "./dom";
import { EventList } from "./events";
import { Files } from "./files";
import { apply, fragment, fromAddress, isEmpty, type Filter } from "./filter";
import { clean, rate } from "./format";
import { makeGraph } from "./graph";
import { DRIVERS, driverName, History } from "./history";
import { logInFromAddress, showLogin } from "./login";
import { build, type Model } from "./model";
import { Modules } from "./modules";
import { linkTable, procTable, showGroups, showWarnings } from "./views";

/** A little more than the gatekeepers' own interval, so that each answer is a new one. */
const INTERVAL_MS = 1050;
/** Groups, circuits and programs are asked for when an event says that they have changed, and at this interval. */
const DIRECTORY_INTERVAL_MS = 10000;

class Page {
    private filter: Filter = fromAddress();
    private model: Model = build([], new Map(), [], new Map(), []);
    private hosts: Host[] = [];
    private groups: View[] = [];
    private circuits = new Map<string, Circuit[]>();
    private programs: Program[] = [];
    private directoryAt = 0;
    private scheduled = false;
    private readonly history = new History();
    private readonly graph = makeGraph();
    private readonly chart = makeChart();
    private readonly links = linkTable(() => this.filter.link, () => this.model.hosts.length);
    private readonly procs = procTable();
    private readonly modules = new Modules(() => this.filter, () => this.hosts);
    private readonly files = new Files();
    private readonly events: EventList;

    constructor(private readonly session: Session) {
        this.events = new EventList(session.host, () => this.hosts, () => (this.directoryAt = 0));
        text(byId("session"), clean(session.name, 64));
        document.title = `${clean(session.name, 64)} · Motet`;
        addEventListener("hashchange", () => this.setFilter(fromAddress(), false));
        const q = byId<HTMLInputElement>("filter-q");
        q.addEventListener("input", () => this.setFilter({ ...this.filter, q: q.value, process: "", link: "" }, true));
        for (const name of ["host", "group"] as const) {
            const select = byId<HTMLSelectElement>(`filter-${name}`);
            select.addEventListener("change", () => this.setFilter({ ...this.filter, [name]: select.value, process: "", link: "" }, true));
        }
        addEventListener("keydown", (event) => {
            const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
            if (event.key === "/" && !isTyping) {
                event.preventDefault();
                q.focus();
            } else if (event.key === "Escape") {
                location.hash = "";
            }
        });
        this.showFilter();
    }

    /** Asks and shows, for as long as the page is open and logged in. */
    async run(): Promise<void> {
        void this.events.follow();
        void this.events.followOthers();
        void this.modules.follow();
        for (;;) {
            const began = performance.now();
            try {
                await this.ask();
                this.setStatus(true, "live");
            } catch (error) {
                if (error instanceof ApiError && error.status === 401) {
                    showLogin("This page is not logged in any more: the gatekeeper has been started again.");
                    return;
                }
                this.setStatus(false, "the gatekeeper does not answer");
            }
            const left = INTERVAL_MS - (performance.now() - began);
            await new Promise((resolve) => setTimeout(resolve, Math.max(100, left)));
        }
    }

    private async ask(): Promise<void> {
        const now = performance.now();
        if (this.directoryAt === 0 || now - this.directoryAt > DIRECTORY_INTERVAL_MS) {
            this.directoryAt = now;
            [this.groups, this.programs, this.hosts] = await Promise.all([
                get<View[]>("/v1/groups"),
                get<Program[]>("/v1/programs"),
                get<Host[]>("/v1/hosts"),
            ]);
            const up = this.hosts.filter((host) => host.up);
            this.circuits = join(await Promise.all(up.map(({ name }) =>
                get<Circuit[]>(`/v1/hosts/${encodeURIComponent(name)}/circuits`).catch(() => []))));
        }
        const silent = new Map<string, string>();
        const files = this.files.ask(this.hosts);
        const reports = await Promise.all(this.hosts.map(async ({ name, up }) => {
            try {
                if (!up) {
                    throw new Error("its gatekeeper is not connected");
                }
                return await get<HostReport>(`/v1/hosts/${encodeURIComponent(name)}/processes`);
            } catch (error) {
                if (name === this.session.host || (error instanceof ApiError && error.status === 401)) {
                    throw error;
                }
                silent.set(name, error instanceof Error ? error.message : String(error));
                return null;
            }
        }));
        this.model = build(reports.filter((report) => report !== null), silent, this.groups, this.circuits, this.programs);
        await files;
        this.history.add(this.model.at, this.model.links);
        this.render();
    }

    private setStatus(isLive: boolean, words: string): void {
        set(byId("status"), "class", isLive ? "live" : "away");
        text(byId("status"), words);
    }

    private setFilter(filter: Filter, isTyped: boolean): void {
        this.filter = filter;
        if (isTyped) {
            history.replaceState(null, "", isEmpty(filter) ? location.pathname : fragment(filter));
        }
        this.showFilter();
        if (!this.scheduled) {
            this.scheduled = true;
            requestAnimationFrame(() => {
                this.scheduled = false;
                this.render();
            });
        }
    }

    private showFilter(): void {
        const q = byId<HTMLInputElement>("filter-q");
        if (document.activeElement !== q) {
            q.value = this.filter.q;
        }
        const one = this.filter.link !== "" ? "one link" : this.filter.process.replace("/", ":");
        const clear = byId("filter-clear");
        clear.hidden = isEmpty(this.filter);
        text(clear, one === "" ? "Show all" : `${clean(one, 60)} – show all`);
    }

    private showChoices(name: "host" | "group", all: string, values: string[]): void {
        const select = byId<HTMLSelectElement>(`filter-${name}`);
        const choices = [...new Set(["", ...values, this.filter[name]])];
        reconcile(select, choices, (value) => `=${value}`, (value) => el("option", { value }, value === "" ? all : clean(value, 64)), () => undefined);
        select.value = this.filter[name];
    }

    private render(): void {
        const { model, filter } = this;
        const shown = apply(filter, model);
        const groups = new Set([...model.groups.map((view) => view.group), ...model.procs.flatMap((proc) => proc.groups)]);
        this.showChoices("host", "All hosts", model.hosts);
        this.showChoices("group", "All groups", [...groups].sort());
        const hosts = isEmpty(filter) ? model.hosts : model.hosts.filter((host) => shown.procs.some((proc) => proc.host === host));
        this.graph.show(hosts, shown.procs, shown.links);
        this.chart.show(this.history.lines(isEmpty(filter) ? null : new Set(shown.links.map((link) => link.key))));
        this.links.show(shown.links);
        this.procs.show(shown.procs);
        showGroups(model, filter);
        this.files.show(filter);
        showWarnings(model);
        this.showSummary(shown);
    }

    private showSummary(shown: { procs: unknown[]; links: Model["links"] }): void {
        text(byId("count-hosts"), String(this.model.hosts.length));
        text(byId("count-processes"), String(shown.procs.length));
        text(byId("count-links"), String(shown.links.length));
        for (const driver of DRIVERS) {
            const own = shown.links.filter((link) => driverName(link.driver) === driver);
            const sum = own.reduce((all, link) => all + link.rateSent + link.rateReceived, 0);
            const isCounted = own.some((link) => link.sent !== null || link.received !== null);
            text(byId(`rate-${driver}`), !isCounted ? "–" : sum < 1 ? "0 B/s" : rate(sum));
        }
    }
}

async function start(): Promise<void> {
    const problem = await logInFromAddress();
    if (problem !== null) {
        showLogin(problem);
        return;
    }
    for (;;) {
        try {
            const session = await get<Session>("/v1/session");
            byId("main").hidden = false;
            await new Page(session).run();
            return;
        } catch (error) {
            if (error instanceof ApiError && error.status === 401) {
                showLogin("This page is not logged in.");
                return;
            }
            set(byId("status"), "class", "away");
            text(byId("status"), "the gatekeeper does not answer");
            await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
        }
    }
}

void start();
