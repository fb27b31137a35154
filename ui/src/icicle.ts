// Stacks as a tree, and the tree as rectangles: pure, so that it can be tested without a canvas.

/** A node of the tree: one frame below the same callers. */
export interface Node {
  frame: number;
  own: number;
  total: number;
  children: Node[];
}

export const ROOT = -1;
/** What has no frames. */
export const MISSING = -2;

/** Puts stacks together, outermost frame first. The root has the frame ROOT. */
export function tree(rows: { frames: number[]; value: number }[]): Node {
  const root: Node = { frame: ROOT, own: 0, total: 0, children: [] };
  const known = new Map<Node, Map<number, Node>>();
  for (const { frames, value } of rows) {
    if (!(value > 0)) continue;
    let at = root;
    root.total += value;
    for (const frame of frames.length ? [...frames].reverse() : [MISSING]) {
      let below = known.get(at);
      if (!below) known.set(at, (below = new Map()));
      let next = below.get(frame);
      if (!next) {
        next = { frame, own: 0, total: 0, children: [] };
        below.set(frame, next);
        at.children.push(next);
      }
      next.total += value;
      at = next;
    }
    at.own += value;
  }
  const sort = (node: Node) => {
    node.children.sort((a, b) => b.total - a.total || a.frame - b.frame);
    node.children.forEach(sort);
  };
  sort(root);
  return root;
}

/** A rectangle: `left` and `width` in pixels, `depth` in rows. */
export interface Rect {
  node: Node;
  depth: number;
  left: number;
  width: number;
  parent: Rect | null;
}

/** Rectangles for the part of the tree below `top`, as wide as told. What is narrower than `least` is left out, with all below it. */
export function layout(top: Node, width: number, least = 1): Rect[] {
  const rects: Rect[] = [];
  const place = (node: Node, left: number, depth: number, parent: Rect | null) => {
    const own: Rect = { node, depth, left, width: (node.total / top.total) * width, parent };
    if (!(own.width >= least)) return;
    rects.push(own);
    let at = left;
    for (const child of node.children) {
      place(child, at, depth + 1, own);
      at += (child.total / top.total) * width;
    }
  };
  if (top.total > 0) place(top, 0, 0, null);
  return rects;
}

/** The rectangle at a place. */
export function at(rects: Rect[], x: number, depth: number): Rect | null {
  return rects.find((rect) => rect.depth === depth && x >= rect.left && x < rect.left + rect.width) ?? null;
}

/** The way from the top of a drawing to a rectangle, by the names of the frames. It is true of the next answer too, whose frames have other numbers. */
export function way(rect: Rect | null, name: (frame: number) => string): string[] {
  const found: string[] = [];
  for (let one = rect; one?.parent; one = one.parent) found.unshift(name(one.node.frame));
  return found;
}

/** The nodes of a way that are still there, from below `top` on. */
export function along(top: Node, names: string[], name: (frame: number) => string): Node[] {
  const found: Node[] = [];
  for (const one of names) {
    const next = (found.at(-1) ?? top).children.find((child) => name(child.frame) === one);
    if (!next) break;
    found.push(next);
  }
  return found;
}

/** Where an arrow key leads from a rectangle. */
export function beside(rects: Rect[], from: Rect | null, key: string): Rect | null {
  if (!from) return rects[0] ?? null;
  if (key === "ArrowUp") return from.parent ?? from;
  if (key === "ArrowDown") return rects.find((rect) => rect.parent === from) ?? from;
  const row = rects.filter((rect) => rect.depth === from.depth).sort((a, b) => a.left - b.left);
  const index = row.indexOf(from) + (key === "ArrowRight" ? 1 : -1);
  return row[index] ?? from;
}
