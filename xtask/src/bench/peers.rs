//! Figures that others have published about their own programs. They are not measured here, and were measured on other machines.

/// What, the figure, and where it is published.
const FIGURES: [[&str; 3]; 9] = [
    [
        "uprobe, return probe, both, of the kernel",
        "2,562, 3,019, 3,119 ns",
        "bpftime's benchmark page",
    ],
    [
        "a sampled allocation with its stack, a free",
        "4.7 µs, 0.6 µs",
        "OpenTelemetry's profiler, design document 3",
    ],
    [
        "processor time an event, kernel and user",
        "15.5 µs at 45,800 events/s",
        "DataDog's agent, pull request 41005",
    ],
    [
        "events with stacks that it is made for",
        "49,000 a second, 600 bytes each",
        "Ingero",
    ],
    [
        "a snapshot of PyTorch with 100,000 entries of its trace",
        "712 ms",
        "pytorch/pytorch, issue 172672",
    ],
    [
        "a dump with C++ stacks, with Python stacks",
        "461 s, 4 s",
        "pytorch/torchtitan, issue 3628",
    ],
    [
        "a Python stack, taken inside the process",
        "1.5 to 2 µs",
        "pytorch/pytorch, pull requests 82146 and 86145",
    ],
    [
        "what may run always",
        "1 % of a processor, 250 MB",
        "OpenTelemetry's profiler, README",
    ],
    [
        "from a leak or a slow rank to the alert",
        "26 to 30 s",
        "Ingero",
    ],
];

/// The figures as a section of the page, in Markdown.
pub fn markdown() -> String {
    let mut text = "## What others publish\n\nTheir own figures, from other machines: for the order of magnitude only.\n\n\
                    | what | figure | where |\n|---|---|---|\n"
        .to_owned();
    for row in FIGURES {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text
}
