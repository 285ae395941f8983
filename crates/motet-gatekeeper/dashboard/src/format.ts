// Numbers and names for users, in the words of the commands.

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

/** Bytes with three digits: `17 B`, `1.25 MB`, as `motet ps` shows them. */
export function bytes(count: number): string {
    let value = count;
    let unit = 0;
    while (value >= 999.5 && unit + 1 < UNITS.length) {
        value /= 1000;
        unit += 1;
    }
    if (unit === 0) {
        return `${Math.round(value)} B`;
    }
    const digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** Bytes per second; a dash for none. */
export function rate(perSecond: number): string {
    return perSecond < 1 ? "–" : `${bytes(perSecond)}/s`;
}

/** The time of the day. */
export function clock(milliseconds: number): string {
    const date = new Date(milliseconds);
    return Number.isNaN(date.getTime()) ? "?" : date.toTimeString().slice(0, 8);
}

/** Text without characters that control or reorder it, cut to a length. */
export function clean(raw: string, most: number): string {
    const plain = raw.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "?");
    return plain.length > most ? `${plain.slice(0, most - 1)}…` : plain;
}

const INTERPRETERS = /^(python|perl|ruby|node|bash|dash|sh|java|Rscript|julia)[0-9.]*$/;

/** The program's name without its folder; of an interpreter that runs a file, the file's. */
export function programName(command: string): string {
    const words = command.split(" ");
    const base = (word: string): string => word.split("/").pop() ?? word;
    const program = base(words[0] ?? command);
    const script = words[1];
    const isScript = INTERPRETERS.test(program) && script !== undefined && script !== "" && !script.startsWith("-");
    return clean(isScript ? base(script) : program, 32);
}
