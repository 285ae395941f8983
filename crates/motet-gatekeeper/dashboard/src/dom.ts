// Elements of the page. All text of the session is inserted as text, never as HTML; the page's policy (trusted types) enforces it.

type Child = Node | string | null;

/** Attributes that are set on elements; `text` is the text content. */
export type Attributes = Record<string, string | number | boolean | null | undefined | ((event: Event) => void)>;

function fill<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
    for (const [name, value] of Object.entries(attributes)) {
        if (typeof value === "function") {
            element.addEventListener(name, value);
        } else {
            set(element, name, value);
        }
    }
    for (const child of children) {
        if (child !== null) {
            element.append(child);
        }
    }
    return element;
}

/** Makes an element of HTML. */
export function el<K extends keyof HTMLElementTagNameMap>(
    tag: K,
    attributes: Attributes = {},
    ...children: Child[]
): HTMLElementTagNameMap[K] {
    return fill(document.createElement(tag), attributes, children);
}

/** Makes an element of SVG. */
export function svg<K extends keyof SVGElementTagNameMap>(
    tag: K,
    attributes: Attributes = {},
    ...children: Child[]
): SVGElementTagNameMap[K] {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Sets an attribute, if it differs. `null` and `false` remove it. */
export function set(element: Element, name: string, value: string | number | boolean | null | undefined): void {
    if (value === null || value === undefined || value === false) {
        element.removeAttribute(name);
        return;
    }
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) {
        element.setAttribute(name, text);
    }
}

/** Sets the text of an element, if it differs: an unchanged element causes no work in the browser. */
export function text(element: Element, value: string): void {
    if (element.textContent !== value) {
        element.textContent = value;
    }
}

/** The element with an identity, which index.html has. */
export function byId<E extends HTMLElement = HTMLElement>(id: string): E {
    const found = document.getElementById(id);
    if (found === null) {
        throw new Error(`the page has no element ${id}`);
    }
    return found as E;
}

/** Makes the children of a parent those with these keys, in this order. Elements of keys that stay are kept. */
export function reconcile<T>(
    parent: Element,
    items: readonly T[],
    key: (item: T) => string,
    make: (item: T) => Element,
    update: (element: Element, item: T) => void,
): void {
    const old = new Map<string, Element>();
    for (const child of [...parent.children]) {
        old.set(child.getAttribute("data-key") ?? "", child);
    }
    let place = parent.firstElementChild;
    for (const item of items) {
        const name = key(item);
        let element = old.get(name);
        if (element === undefined) {
            element = make(item);
            element.setAttribute("data-key", name);
        }
        old.delete(name);
        update(element, item);
        if (element === place) {
            place = place.nextElementSibling;
        } else {
            parent.insertBefore(element, place);
        }
    }
    for (const element of old.values()) {
        element.remove();
    }
}
