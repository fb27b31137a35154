// As much of a browser as the page's parts need to be mounted under Node: elements without layout, a canvas that draws nothing, and a server
// whose answers a test gives. It has to be imported before the page's own files.

const it = globalThis as any;

class FakeNode {
  parentNode: any = null;
  childNodes: any[] = [];
  attributes: Record<string, string> = {};
  listeners: Record<string, any> = {};
  style: Record<string, string> = {};
  clientWidth = 800;
  clientHeight = 300;
  namespaceURI = "http://www.w3.org/1999/xhtml";
  ownerDocument = it.document;
  constructor(
    readonly localName: string,
    readonly nodeType: number,
    public data = "",
  ) {}
  get parentElement() {
    return this.parentNode;
  }
  get firstChild() {
    return this.childNodes[0] ?? null;
  }
  get nextSibling() {
    const all = this.parentNode?.childNodes ?? [];
    return all[all.indexOf(this) + 1] ?? null;
  }
  insertBefore(child: any, before: any) {
    child.remove();
    const at = before ? this.childNodes.indexOf(before) : this.childNodes.length;
    this.childNodes.splice(at, 0, child);
    child.parentNode = this;
    return child;
  }
  appendChild(child: any) {
    return this.insertBefore(child, null);
  }
  removeChild(child: any) {
    child.remove();
    return child;
  }
  remove() {
    const all = this.parentNode?.childNodes;
    if (all) all.splice(all.indexOf(this), 1);
    this.parentNode = null;
  }
  contains(other: any): boolean {
    return other === this || this.childNodes.some((child) => child.contains(other));
  }
  setAttribute(name: string, value: string) {
    this.attributes[name] = String(value);
  }
  removeAttribute(name: string) {
    delete this.attributes[name];
  }
  addEventListener(name: string, then: any) {
    this.listeners[name.toLowerCase()] = then;
  }
  /** Tells what listens here of an event. */
  send(type: string, event: object = {}) {
    this.listeners[type].call(this, { type, currentTarget: this, preventDefault: () => undefined, ...event });
  }
  removeEventListener(name: string) {
    delete this.listeners[name.toLowerCase()];
  }
  scrollIntoView() {}
  focus() {}
  getBoundingClientRect() {
    return { left: 0, top: 0, width: 800, height: 300 };
  }
  getContext() {
    const image = (width: number, height: number) => ({ data: new Uint8ClampedArray(width * height * 4) });
    return new Proxy({}, { get: (_, name) => (name === "createImageData" ? image : () => undefined), set: () => true });
  }
  get textContent(): string {
    return this.nodeType === 3 ? this.data : this.childNodes.map((child) => child.textContent).join("");
  }
  set textContent(text: string) {
    this.childNodes = text ? [new FakeNode("#text", 3, text)] : [];
  }
  /** All elements of a name below this one. */
  all(name: string): any[] {
    return this.childNodes.flatMap((child) => [...(child.localName === name ? [child] : []), ...child.all(name)]);
  }
}

export const server: {
  /** Answers a question to the server: its path, and the body of the request. */
  answer: (path: string, body: any) => { status?: number; body: unknown } | Promise<{ status?: number; body: unknown }>;
  asked: string[];
} = { answer: () => ({ body: {} }), asked: [] };

export class Source {
  static all: Source[] = [];
  readyState = 1;
  private listeners: Record<string, (message: any) => void> = {};
  constructor(readonly url: string) {
    Source.all.push(this);
  }
  addEventListener(name: string, then: any) {
    this.listeners[name] = then;
  }
  tell(name: string, data: unknown = {}) {
    this.listeners[name]?.({ data: JSON.stringify(data) });
  }
  close() {
    this.readyState = 2;
  }
}

const root = new FakeNode("html", 1);
export const shown: Record<string, any> = {};
it.document = {
  documentElement: Object.assign(root, { dataset: {} }),
  hidden: false,
  createElement: (name: string) => new FakeNode(name, 1),
  createElementNS: (_: string, name: string) => new FakeNode(name, 1),
  createTextNode: (text: string) => new FakeNode("#text", 3, text),
  addEventListener: (name: string, then: any) => (shown[name] = then),
  querySelector: () => null,
  getElementById: () => null,
};
it.location = { hash: "" };
it.history = {
  pushed: 0,
  replaceState: (_: any, __: string, hash: string) => (it.location.hash = hash),
  pushState: (_: any, __: string, hash: string) => {
    it.history.pushed += 1;
    it.location.hash = hash;
  },
};
it.addEventListener = () => undefined;
it.matchMedia = () => ({ matches: false, addEventListener: () => undefined });
it.getComputedStyle = () => ({ getPropertyValue: () => "" });
it.devicePixelRatio = 1;
it.requestAnimationFrame = (then: () => void) => setTimeout(then, 0);
it.cancelAnimationFrame = clearTimeout;
it.ResizeObserver = class {
  constructor(readonly then: () => void) {}
  observe() {
    setTimeout(this.then, 0);
  }
  disconnect() {}
};
it.EventSource = Source;
it.fetch = async (path: string, how: { body?: string; signal?: AbortSignal }) => {
  server.asked.push(path);
  const { status, body } = await server.answer(path, how.body ? JSON.parse(how.body) : undefined);
  if (how.signal?.aborted) throw new Error("aborted");
  const text = typeof body === "string" ? body : JSON.stringify(body);
  return { ok: (status ?? 200) < 400, status: status ?? 200, text: async () => text };
};

/** A place to mount something in. */
export function place(): any {
  return new FakeNode("div", 1);
}

/** Holds timers of a second and more until a test lets them pass. */
export function heldTimers(): { pass: () => void; end: () => void } {
  const { setTimeout: set, clearTimeout: clear } = it;
  const all = new Map<unknown, () => void>();
  it.setTimeout = (then: () => void, ms: number, ...more: unknown[]) => {
    if (!(ms >= 1000)) return set(then, ms, ...more);
    const timer = {};
    all.set(timer, then);
    return timer;
  };
  it.clearTimeout = (timer: unknown) => void (all.delete(timer) || clear(timer));
  return {
    /** All that wait now fire; what they begin waits for the next time. */
    pass() {
      const now = [...all.values()];
      all.clear();
      now.forEach((then) => then());
    },
    end: () => Object.assign(it, { setTimeout: set, clearTimeout: clear }),
  };
}

/** Waits until what was begun is done: answers, effects and drawing. */
export async function settled(): Promise<void> {
  for (let i = 0; i < 6; i++) await new Promise((done) => setTimeout(done, 3));
}
