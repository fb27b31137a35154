// Whose code a frame runs.

const LIBRARIES = ["/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3"];
// What Python calls the files of code that a person typed. `<string>` is also what a dataclass generates: methods with two underscores.
const TYPED = ["<ipython-input-", "<python-input-", "<stdin>", "<console>", "<string>"];

/**
 * Whether a frame is a line of Python of the program itself: neither of an installed package nor of Python's own library. The rule is that of
 * `is_own` in crates/units, whose table of cases the tests go through.
 */
export function isOwn(frame: { kind: string; name?: string | null; file?: string | null; line?: number | null }): boolean {
  const [name, file] = [frame.name ?? "", frame.file ?? ""];
  const isGenerated = file.startsWith("<string>") && name.startsWith("__");
  const isProgram = file.startsWith("<")
    ? !isGenerated && TYPED.some((typed) => file.startsWith(typed))
    : !LIBRARIES.some((part) => file.includes(part));
  return frame.kind === "python" && Number(frame.line ?? 0) > 0 && isProgram;
}
