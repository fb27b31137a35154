// Whose code a frame runs.

/**
 * Whether a frame is a line of Python in a file of the program itself: neither of an installed package nor of Python's own library. The rule is
 * that of `is_own_file` in crates/units.
 */
export function isOwn(frame: { kind: string; file?: string | null; line?: number | null }): boolean {
  const file = frame.file ?? "";
  const isLibrary = ["/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3"].some((part) => file.includes(part));
  return frame.kind === "python" && Number(frame.line ?? 0) > 0 && !isLibrary && !file.startsWith("<");
}
