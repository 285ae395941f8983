// A table that is sorted by a column and updated in place. It shows the first rows only, and more on demand, so that thousands of rows cost little.

import { byId, el, reconcile, set, text } from "./dom";

/** One column. */
export interface Column<Row> {
    key: string;
    title: string;
    /** The value to sort by. */
    by: (row: Row) => number | string;
    /** Fills the cell. */
    show: (cell: HTMLElement, row: Row) => void;
    /** Numbers stand at the right. */
    number?: boolean;
}

const FIRST_ROWS = 50;

/** A table in an element of the page. */
export class Table<Row> {
    private sortKey: string;
    private ascending = false;
    private most = FIRST_ROWS;
    private rows: Row[] = [];
    private readonly body = el("tbody");
    private readonly headings = new Map<string, HTMLElement>();
    private readonly more = el("button", { type: "button", class: "more", click: () => this.showMore() });

    constructor(
        id: string,
        private readonly columns: Column<Row>[],
        private readonly key: (row: Row) => string,
        private readonly empty: string,
        sort: string,
        private readonly mark: (row: Row) => string = () => "",
        private readonly detail: (row: Row) => string[] | null = () => null,
    ) {
        this.sortKey = sort;
        const head = columns.map((column) => {
            const sorted = (): void => this.sortBy(column.key);
            const heading = el("th", { scope: "col", class: column.number === true ? "number" : null },
                el("button", { type: "button", click: sorted }, column.title));
            this.headings.set(column.key, heading);
            return heading;
        });
        byId(id).append(el("table", {}, el("thead", {}, el("tr", {}, ...head)), this.body), this.more);
    }

    /** Shows these rows. */
    show(rows: Row[]): void {
        this.rows = rows;
        this.render();
    }

    private sortBy(key: string): void {
        this.ascending = this.sortKey === key ? !this.ascending : false;
        this.sortKey = key;
        this.render();
    }

    private showMore(): void {
        this.most += 4 * FIRST_ROWS;
        this.render();
    }

    private render(): void {
        for (const [key, heading] of this.headings) {
            set(heading, "aria-sort", key !== this.sortKey ? null : this.ascending ? "ascending" : "descending");
        }
        const column = this.columns.find((candidate) => candidate.key === this.sortKey);
        const sign = this.ascending ? 1 : -1;
        const keyed = this.rows.map((row) => ({ row, by: column?.by(row) ?? 0, key: this.key(row) }));
        keyed.sort((a, b) => {
            if (a.by !== b.by) {
                const order = typeof a.by === "number" && typeof b.by === "number" ? a.by - b.by : String(a.by) < String(b.by) ? -1 : 1;
                // Names go from A to Z first, numbers from the largest.
                return typeof a.by === "string" ? -sign * order : sign * order;
            }
            return a.key < b.key ? -1 : 1;
        });
        const shown = keyed.slice(0, this.most);
        reconcile(this.body, shown, (item) => item.key, () => this.makeRow(), (element, item) => this.updateRow(element, item.row));
        if (shown.length === 0) {
            this.body.append(el("tr", { class: "empty" }, el("td", { colspan: this.columns.length }, this.empty)));
        }
        const left = keyed.length - shown.length;
        this.more.hidden = left === 0;
        text(this.more, `Show more (${left} left)`);
    }

    private makeRow(): Element {
        const cells = this.columns.map((column) =>
            el("td", { class: column.number === true ? "number" : null, "data-title": column.title }, el("span")));
        return el("tr", {}, ...cells);
    }

    private updateRow(element: Element, row: Row): void {
        set(element, "class", this.mark(row));
        this.columns.forEach((column, at) => {
            const cell = element.children[at]?.firstElementChild;
            if (cell instanceof HTMLElement) {
                column.show(cell, row);
            }
        });
        const lines = this.detail(row);
        const own = element.querySelector(".detail");
        if (lines === null) {
            own?.remove();
        } else if (own === null) {
            element.lastElementChild?.append(el("span", { class: "detail" }, ...lines.map((line) => el("span", {}, line))));
        } else {
            reconcile(own, lines.map((line, at) => ({ line, at })), (item) => String(item.at), () => el("span"), (child, item) => text(child, item.line));
        }
    }
}
