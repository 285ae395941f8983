// The modules of all hosts: their states and logs, and load, start, stop and unload.

import { ApiError, get, send, type Host } from "./api";
import { byId, el, reconcile, set, text } from "./dom";
import { fragment, type Filter } from "./filter";
import { clean, clock } from "./format";
import { procKey } from "./model";

const INTERVAL_MS = 2000;

interface Module {
    node: string;
    host: string;
    name: string;
    driver: string;
    state: string;
    since: number;
    restarts?: number;
    last_exit?: string;
    pid?: number;
    requires?: string[];
    group?: string;
}

interface Outcome { host: string; module: string; error?: string }
interface Log { text: string }

const key = (module: Module): string => `${module.host}/${module.node}/${module.name}`;
const isActive = (module: Module): boolean => module.state === "running" || module.state === "restarting";

/** The list of modules, and the log of one of them. */
export class Modules {
    private modules: Module[] = [];
    private open: Module | null = null;
    private isBusy = false;

    /** `filter`: what the page shows; `hosts`: those of the session. */
    constructor(private readonly filter: () => Filter, private readonly hosts: () => Host[]) {
        const form = byId<HTMLFormElement>("load");
        form.addEventListener("submit", (event) => {
            event.preventDefault();
            const value = (id: string): string => byId<HTMLInputElement>(id).value.trim();
            const on = value("load-group");
            const operation = { operation: "load", descriptor: value("load-path"), start: true };
            void this.operate(`/v1/hosts/${encodeURIComponent(value("load-host"))}/modules`, on === "" ? operation : { ...operation, on });
        });
        byId("log-close").addEventListener("click", () => {
            this.open = null;
            this.render();
        });
    }

    /** Asks and shows, for as long as the page is open. */
    async follow(): Promise<never> {
        for (;;) {
            await this.ask();
            await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
        }
    }

    private async ask(): Promise<void> {
        const up = this.hosts().filter((host) => host.up);
        const lists = await Promise.all(up.map((host) =>
            get<Module[]>(`/v1/hosts/${encodeURIComponent(host.name)}/modules`).catch(() => [] as Module[])));
        this.modules = lists.flat().sort((a, b) => (key(a) < key(b) ? -1 : 1));
        this.render();
        await this.showLog();
    }

    private async showLog(): Promise<void> {
        const module = this.open;
        if (module === null) {
            return;
        }
        const path = `/v1/hosts/${encodeURIComponent(module.host)}/modules/${encodeURIComponent(module.node)}/${encodeURIComponent(module.name)}/log`;
        const log = await get<Log>(path).catch((error: unknown) => ({ text: String(error) }));
        const place = byId("log-text");
        const isAtEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
        text(place, log.text.replace(/\u001b\[[0-9;]*m/g, ""));
        if (isAtEnd) {
            place.scrollTop = place.scrollHeight;
        }
    }

    private async operate(path: string, body: object): Promise<void> {
        if (this.isBusy) {
            return;
        }
        this.isBusy = true;
        this.say("");
        this.render();
        try {
            const answer: unknown = await (await send("POST", path, body, AbortSignal.timeout(90000))).json();
            const outcomes = (Array.isArray(answer) ? answer : [answer]) as Outcome[];
            const failed = outcomes.find((outcome) => outcome.error !== undefined && outcome.error !== null);
            this.say(failed === undefined ? "" : clean(`${failed.host}: ${failed.error ?? ""}`, 400));
        } catch (error) {
            this.say(error instanceof ApiError ? clean(error.message, 400) : String(error));
        }
        this.isBusy = false;
        await this.ask();
    }

    private say(words: string): void {
        text(byId("modules-problem"), words);
    }

    private render(): void {
        const filter = this.filter();
        const shown = this.modules.filter((module) =>
            (filter.host === "" || module.host === filter.host) && (filter.group === "" || (module.group ?? "") === filter.group));
        reconcile(byId("modules"), shown, key, (module) => this.makeModule(module), (element, module) => this.updateModule(element, module));
        byId("no-modules").hidden = shown.length > 0;
        const host = byId<HTMLSelectElement>("load-host");
        const names = this.hosts().map((each) => each.name);
        reconcile(host, names, (name) => name, (name) => el("option", { value: name }, clean(name, 64)), () => undefined);
        byId("log").hidden = this.open === null;
        text(byId("log-title"), this.open === null ? "" : `Log of ${clean(this.open.name, 64)}`);
    }

    private makeModule(module: Module): Element {
        const act = (operation: string) => (): void => {
            const current = this.modules.find((each) => key(each) === key(module));
            if (current !== undefined) {
                const place = `/v1/hosts/${encodeURIComponent(current.host)}`;
                const body = { operation, module: current.name };
                // A module of a group changes at all its nodes.
                const path = current.group === undefined ? `${place}/nodes/${encodeURIComponent(current.node)}/modules` : `${place}/modules`;
                void this.operate(path, current.group === undefined ? body : { ...body, on: current.group });
            }
        };
        const button = (name: string, words: string, click: () => void): Element =>
            el("button", { type: "button", "data-do": name, "aria-label": `${words} ${clean(module.name, 64)}`, click }, words);
        const showLog = (): void => {
            this.open = module;
            this.render();
            void this.showLog();
        };
        return el("li", {},
            el("span", { class: "state" }), el("strong", {}, clean(module.name, 64)), el("span", { class: "about" }),
            el("span", { class: "acts" }, button("start", "Start", act("start")), button("stop", "Stop", act("stop")),
                button("unload", "Unload", act("unload")), button("log", "Log", showLog)));
    }

    private updateModule(element: Element, module: Module): void {
        const [state, , about, acts] = [...element.children];
        if (state === undefined || about === undefined || acts === undefined) {
            return;
        }
        set(state, "class", `state ${isActive(module) ? "active" : module.state === "failed" ? "failed" : ""}`);
        text(state, clean(module.state, 16));
        const parts = [
            clean(module.driver, 16),
            module.group === undefined ? clean(module.host, 64) : `${clean(module.host, 64)}, group ${clean(module.group, 64)}`,
            module.pid === undefined ? "" : `process ${module.pid}`,
            `since ${clock(module.since * 1000)}`,
            (module.restarts ?? 0) > 0 ? `${module.restarts} restarts` : "",
            module.last_exit === undefined ? "" : clean(module.last_exit, 100),
            (module.requires ?? []).length === 0 ? "" : `requires ${clean((module.requires ?? []).join(", "), 200)}`,
        ];
        const words = parts.filter((part) => part !== "").join(" · ");
        if (module.pid === undefined) {
            text(about, words);
        } else if (about.textContent !== words || about.firstElementChild === null) {
            about.replaceChildren(el("a", { href: fragment({ process: procKey(module.host, module.pid) }) }, words));
        }
        for (const button of acts.querySelectorAll("button")) {
            const name = button.getAttribute("data-do");
            const isOff = name === "start" ? isActive(module) : name === "stop" ? !isActive(module) : name === "unload" ? isActive(module) : false;
            button.disabled = name !== "log" && (this.isBusy || isOff);
        }
    }
}
