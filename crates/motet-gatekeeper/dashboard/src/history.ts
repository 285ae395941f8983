// Rates over the last ten minutes: one sample a second for each link that lives, and the sum of all by driver.

import type { Link } from "./model";

/** Samples that are kept. */
export const SAMPLES = 600;
/** Links whose rates are kept one by one. */
const MAX_LINKS = 2000;

/** The drivers that have a colour of their own, in the order of the chart. */
export const DRIVERS = ["shm", "tcp", "other"] as const;
export type DriverName = (typeof DRIVERS)[number];

/** The driver's name as far as the page has a colour for it. */
export function driverName(driver: string): DriverName {
    return driver === "shm" || driver === "tcp" ? driver : "other";
}

interface Series { driver: DriverName; values: Float32Array; seen: number }

/** The rates so far. */
export class History {
    private readonly times = new Float64Array(SAMPLES);
    private readonly totals: Record<DriverName, Float32Array> = {
        shm: new Float32Array(SAMPLES),
        tcp: new Float32Array(SAMPLES),
        other: new Float32Array(SAMPLES),
    };
    private readonly links = new Map<string, Series>();
    private count = 0;

    /** Adds a sample of all links. A sample of the same time as the last one changes nothing. */
    add(at: number, links: Link[]): void {
        if (this.count > 0 && at <= this.timeOf(this.count - 1)) {
            return;
        }
        const place = this.count % SAMPLES;
        this.times[place] = at / 1000;
        for (const driver of DRIVERS) {
            this.totals[driver][place] = 0;
        }
        for (const link of links) {
            const driver = driverName(link.driver);
            const rate = link.rateSent + link.rateReceived;
            this.totals[driver][place] = (this.totals[driver][place] ?? 0) + rate;
            let series = this.links.get(link.key);
            if (series === undefined) {
                if (this.links.size >= MAX_LINKS) {
                    continue;
                }
                series = { driver, values: new Float32Array(SAMPLES), seen: 0 };
                this.links.set(link.key, series);
            }
            series.driver = driver;
            series.values[place] = rate;
            series.seen = this.count;
        }
        for (const [key, series] of this.links) {
            if (series.seen !== this.count) {
                series.values[place] = 0;
                if (this.count - series.seen > SAMPLES) {
                    this.links.delete(key);
                }
            }
        }
        this.count += 1;
    }

    /** Times, and one line of rates for each driver; `null`: of all links, else of those with these keys. */
    lines(keys: Set<string> | null): [number[], ...(number | null)[][]] {
        const first = Math.max(0, this.count - SAMPLES);
        const times: number[] = [];
        const lines = DRIVERS.map((): (number | null)[] => []);
        const sums = keys === null ? this.totals : this.sumOf(keys);
        for (let at = first; at < this.count; at += 1) {
            const time = this.times[at % SAMPLES] ?? 0;
            const before = times[times.length - 1];
            // While the page slept nothing was measured: a gap, no line.
            if (before !== undefined && time - before > 10) {
                times.push(before + 1);
                lines.forEach((line) => line.push(null));
            }
            times.push(time);
            DRIVERS.forEach((driver, index) => lines[index]?.push(sums[driver][at % SAMPLES] ?? 0));
        }
        // A driver that no link uses has no line.
        return [times, ...lines.map((line) => (line.some((value) => value !== null && value > 0) ? line : line.map(() => null)))];
    }

    private sumOf(keys: Set<string>): Record<DriverName, Float32Array> {
        const sums = { shm: new Float32Array(SAMPLES), tcp: new Float32Array(SAMPLES), other: new Float32Array(SAMPLES) };
        for (const key of keys) {
            const series = this.links.get(key);
            if (series !== undefined) {
                const sum = sums[series.driver];
                series.values.forEach((value, at) => {
                    sum[at] = (sum[at] ?? 0) + value;
                });
            }
        }
        return sums;
    }

    private timeOf(sample: number): number {
        return (this.times[sample % SAMPLES] ?? 0) * 1000;
    }
}
