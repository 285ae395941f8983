// The chart of rates over time, drawn by uPlot in the colours of the page.

import uPlot from "uplot";
import { byId, set } from "./dom";
import { bytes } from "./format";
import { DRIVERS, type DriverName } from "./history";

/** The time that the chart shows, seconds: at first less, until there are rates to show. */
const SPAN = { least: 60, most: 600 };
const HEIGHT = 200;

type Lines = [number[], ...(number | null)[][]];

/** The chart. It is made again when the colours change. */
export class Chart {
    private plot: uPlot | null = null;
    private lines: Lines = [[], [], [], []];

    constructor(private readonly place: HTMLElement) {
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.make());
        new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height: HEIGHT })).observe(place);
        this.make();
    }

    /** Shows these lines. */
    show(lines: Lines): void {
        this.lines = lines;
        this.plot?.setData(lines as uPlot.AlignedData, true);
        if ((this.plot?.cursor.left ?? -1) < 0) {
            this.plot?.setLegend({ idx: lines[0].length - 1 }); // without a pointer: the rates now
        }
        const last = (index: number): string => `${DRIVERS[index]} ${bytes(lines[index + 1]?.at(-1) ?? 0)}/s`;
        set(this.place, "aria-label", `rates now: ${DRIVERS.map((_, index) => last(index)).join(", ")}`);
    }

    private width(): number {
        return Math.max(200, this.place.clientWidth);
    }

    private make(): void {
        const style = getComputedStyle(document.documentElement);
        const colour = (name: string): string => style.getPropertyValue(`--${name}`).trim();
        const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
        const line = (driver: DriverName): uPlot.Series => ({
            label: driver,
            stroke: colour(driver),
            fill: `${colour(driver)}22`,
            width: 1.5,
            points: { show: false },
            value: (_, value) => (value === null ? "–" : `${bytes(value)}/s`),
        });
        const now = (): number => this.lines[0].at(-1) ?? Date.now() / 1000;
        const span = (): number => Math.min(SPAN.most, Math.max(SPAN.least, now() - (this.lines[0][0] ?? now())));
        this.plot?.destroy();
        this.plot = new uPlot(
            {
                width: this.width(),
                height: HEIGHT,
                cursor: { drag: { x: false, y: false } },
                legend: { live: true },
                scales: {
                    x: { range: () => [now() - span(), now()] },
                    y: { range: (_, __, most) => [0, Math.max(1000, most * 1.1)] },
                },
                axes: [
                    { ...axis, size: 32, space: 80, values: (_, ticks) => ticks.map((tick) => ago(now() - tick)) },
                    { ...axis, size: 72, values: (_, ticks) => ticks.map((tick) => `${bytes(tick)}/s`) },
                ],
                series: [{ label: "time", value: (_, value) => (value === null ? "–" : ago(now() - value)) }, ...DRIVERS.map(line)],
            },
            this.lines as uPlot.AlignedData,
            this.place,
        );
    }
}

function ago(seconds: number): string {
    if (seconds < 1) {
        return "now";
    }
    return seconds < 90 ? `−${Math.round(seconds)} s` : `−${Math.round(seconds / 60)} min`;
}

/** Makes the chart of the page. */
export function makeChart(): Chart {
    return new Chart(byId("chart"));
}
