// The login: the token in the page's address is sent once. What the page keeps is the second secret, beside a cookie that scripts cannot read.

import { byId, text } from "./dom";

/** The header that carries the page's secret. */
export const PAGE_HEADER = "motet-page";
const KEPT = "motet-page";

/** The page's secret; empty before a login. */
export function pageSecret(): string {
    try {
        return localStorage.getItem(KEPT) ?? "";
    } catch {
        return ""; // the browser forbids it
    }
}

/** Logs in with the token that the address holds, and removes it from the address. Returns what is wrong, or `null`. */
export async function logInFromAddress(): Promise<string | null> {
    const token = location.hash.slice(1);
    if (!/^[0-9a-f]{16,}$/i.test(token)) {
        return null;
    }
    history.replaceState(null, "", location.pathname);
    return logIn(token);
}

async function logIn(token: string): Promise<string | null> {
    const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ token }) };
    try {
        const answer = await fetch("/v1/login", options);
        const body = (await answer.json()) as { page?: string; error?: string };
        if (!answer.ok || typeof body.page !== "string") {
            return body.error ?? `the login failed with HTTP status ${answer.status}`;
        }
        localStorage.setItem(KEPT, body.page);
        return null;
    } catch (error) {
        return `the login failed: ${String(error)}`;
    }
}

/** Shows the form for a token in place of the page. A token or a whole address may be pasted. */
export function showLogin(why: string): void {
    text(byId("login-why"), why);
    byId("login").hidden = false;
    byId("main").hidden = true;
    const field = byId<HTMLInputElement>("login-token");
    field.focus();
    byId("login-form").onsubmit = (event) => {
        event.preventDefault();
        const token = field.value.trim().split("#").pop() ?? "";
        field.value = "";
        void logIn(token).then((problem) => {
            if (problem === null) {
                location.reload();
            } else {
                text(byId("login-why"), problem);
            }
        });
    };
}
