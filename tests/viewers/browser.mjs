// Chromium without a window, spoken to over a pipe in the DevTools protocol. Node.js is all that this needs.
//
// A page sees only what it is given: every request is stopped and answered from here or refused, and each
// refusal is remembered, as is every exception and every message of the level "error".

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { accessSync, constants } from "node:fs";

const NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const PATIENCE_MS = 120_000;

function found() {
  if (process.env.MEMSCOPE_CHROMIUM) return process.env.MEMSCOPE_CHROMIUM;
  for (const name of NAMES) {
    for (const folder of (process.env.PATH ?? "").split(delimiter)) {
      try {
        accessSync(join(folder, name), constants.X_OK);
        return join(folder, name);
      } catch {
        // Not there.
      }
    }
  }
  throw new Error(`none of ${NAMES.join(", ")} is on PATH: cargo xtask setup --browser installs Chromium`);
}

// The answer to a request that goes to its server.
export const THROUGH = Symbol("through");

export class Browser {
  // Starts it.
  static async start() {
    const browser = new Browser();
    browser.folder = mkdtempSync(join(tmpdir(), "memscope-chromium-"));
    // No sandbox: containers and root have none, and nothing but our own files is opened.
    const words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
      "--force-device-scale-factor=1", "--window-size=1400,1600", "--hide-scrollbars",
      `--user-data-dir=${browser.folder}`, "--remote-debugging-pipe", "about:blank"];
    browser.child = spawn(found(), words, { stdio: ["ignore", "ignore", "pipe", "pipe", "pipe"] });
    browser.said = "";
    browser.child.stderr.on("data", (text) => { browser.said = (browser.said + text).slice(-4000); });
    browser.waiting = new Map();
    browser.pages = new Map();
    browser.next = 1;
    const gone = (why) => {
      const error = new Error(`Chromium ended: ${why}\n${browser.said}`);
      browser.gone ??= error;
      for (const { fail } of browser.waiting.values()) fail(error);
      browser.waiting.clear();
    };
    browser.child.on("error", gone);
    browser.ended = new Promise((resolve) => browser.child.on("exit", (code, signal) => { gone(signal ?? code); resolve(); }));
    browser.child.stdio[3].on("error", gone);
    let parts = [];
    browser.child.stdio[4].on("data", (bytes) => {
      let at = 0;
      for (let end = bytes.indexOf(0); end >= 0; end = bytes.indexOf(0, at)) {
        parts.push(bytes.subarray(at, end));
        browser.#heard(JSON.parse(Buffer.concat(parts).toString()));
        parts = [];
        at = end + 1;
      }
      parts.push(bytes.subarray(at));
    });
    browser.version = (await browser.send("Browser.getVersion")).product;
    return browser;
  }

  #heard(message) {
    if (message.id === undefined) {
      this.pages.get(message.sessionId)?.happened(message.method, message.params);
      return;
    }
    const waits = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (message.error) waits?.fail(new Error(`${waits.method}: ${message.error.message}`));
    else waits?.done(message.result);
  }

  // Sends a command and gives its answer.
  send(method, params = {}, sessionId = undefined) {
    if (this.gone) return Promise.reject(this.gone);
    const id = this.next++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => { this.waiting.delete(id); fail(new Error(`${method}: no answer after ${PATIENCE_MS / 1000} s`)); }, PATIENCE_MS);
      const fail = (error) => { clearTimeout(timer); reject(error); };
      this.waiting.set(id, { method, fail, done: (result) => { clearTimeout(timer); resolve(result); } });
      this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  // A new page. `answer(url)` gives {body, type} for what the page may have, THROUGH for what a server on this machine answers, and nothing for
  // what it may not.
  async page(answer) {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, targetId, sessionId, answer);
    this.pages.set(sessionId, page);
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await page.send(`${domain}.enable`);
    await page.send("Fetch.enable", { patterns: [{ urlPattern: "*" }] });
    return page;
  }

  // Ends it.
  async stop() {
    if (!this.gone) await this.send("Browser.close").catch(() => {});
    const timer = setTimeout(() => this.child.kill("SIGKILL"), 10_000);
    await this.ended;
    clearTimeout(timer);
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

class Page {
  constructor(browser, target, session, answer) {
    Object.assign(this, { browser, target, session, answer, problems: [], requests: [] });
    this.loaded = new Promise((resolve) => { this.hasLoaded = resolve; });
  }

  send(method, params) {
    return this.browser.send(method, params, this.session);
  }

  happened(method, params) {
    if (method === "Page.loadEventFired") {
      this.hasLoaded();
    } else if (method === "Runtime.exceptionThrown") {
      const { text, exception } = params.exceptionDetails;
      this.problems.push(`exception: ${exception?.description ?? text}`);
    } else if (method === "Runtime.consoleAPICalled" && ["error", "assert"].includes(params.type)) {
      this.problems.push(`console.${params.type}: ${params.args.map((a) => a.value ?? a.description).join(" ")}`);
    } else if (method === "Log.entryAdded" && params.entry.level === "error") {
      this.problems.push(`${params.entry.source}: ${params.entry.text} ${params.entry.url ?? ""}`);
    } else if (method === "Network.webSocketCreated") {
      this.requests.push(params.url);
    } else if (method === "Inspector.targetCrashed") {
      this.problems.push("the page crashed");
    } else if (method === "Fetch.requestPaused") {
      this.#asked(params).catch((error) => this.problems.push(`request: ${error.message}`));
    }
  }

  async #asked({ requestId, request }) {
    this.requests.push(request.url);
    const given = this.answer(request.url);
    if (given === THROUGH) {
      await this.send("Fetch.continueRequest", { requestId });
      return;
    }
    if (!given) {
      await this.send("Fetch.failRequest", { requestId, errorReason: "BlockedByClient" });
      return;
    }
    await this.send("Fetch.fulfillRequest", {
      requestId,
      responseCode: 200,
      // Modules of other origins are fetched with CORS.
      responseHeaders: [["Content-Type", given.type], ["Access-Control-Allow-Origin", "*"]].map(([name, value]) => ({ name, value })),
      body: Buffer.from(given.body).toString("base64"),
    });
  }

  // Opens an address and waits until it has loaded and been painted; gives the milliseconds that this took.
  async open(url) {
    const started = performance.now();
    const { errorText } = await this.send("Page.navigate", { url });
    if (errorText) throw new Error(`${url}: ${errorText}`);
    await this.loaded;
    await this.painted();
    return performance.now() - started;
  }

  // Waits for two frames: what was asked for in one is drawn with the next.
  painted() {
    return this.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))");
  }

  // The value of an expression (which may be a promise) in the page.
  async run(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  // Moves the pointer, presses a key.
  point(x, y) {
    return this.send("Input.dispatchMouseEvent", { type: "mouseMoved", x, y });
  }

  async key(key) {
    const text = key.length === 1 ? key : undefined;
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", key, text });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", key });
  }

  // Turns its wheel over a point.
  wheel(x, y, deltaY) {
    return this.send("Input.dispatchMouseEvent", { type: "mouseWheel", x, y, deltaX: 0, deltaY });
  }

  async close() {
    await this.browser.send("Target.closeTarget", { targetId: this.target });
    this.browser.pages.delete(this.session);
  }
}
