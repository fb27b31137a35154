//! What the dashboards show: one for a node, one for a job with all of its ranks, one for a rank.

/// A dashboard.
pub struct Dashboard {
    /// Name of its file, without the ending.
    pub file: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    /// Labels by which one chooses what is shown.
    pub variables: &'static [&'static str],
    pub panels: &'static [Panel],
}

/// A panel of a dashboard.
pub struct Panel {
    pub title: &'static str,
    pub description: &'static str,
    /// Unit, in Grafana's words.
    pub unit: &'static str,
    /// A table of the present values, and no curves.
    pub is_table: bool,
    pub lines: &'static [Line],
}

/// A query of a panel.
pub struct Line {
    pub expression: &'static str,
    /// What stands beside the curve, with labels in double braces.
    pub legend: &'static str,
}

const fn curves(
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    lines: &'static [Line],
) -> Panel {
    Panel {
        title,
        description,
        unit,
        is_table: false,
        lines,
    }
}

const fn table(
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    lines: &'static [Line],
) -> Panel {
    Panel {
        title,
        description,
        unit,
        is_table: true,
        lines,
    }
}

const fn line(expression: &'static str, legend: &'static str) -> Line {
    Line { expression, legend }
}

/// How a curve of one rank is called.
const RANK: &str = "{{job_id}} rank {{rank}} {{instance}}";

/// All dashboards.
pub const DASHBOARDS: &[Dashboard] = &[
    Dashboard {
        file: "node",
        title: "memscope: nodes",
        description: "Devices and traced processes of the chosen nodes.",
        variables: &["instance"],
        panels: &[
            curves(
                "Memory by process",
                "What each process's allocator holds from the driver.",
                "bytes",
                &[line(
                    r#"memscope_reserved_bytes{instance=~"$instance"}"#,
                    "{{instance}} {{program}} {{pid}} dev {{device}}",
                )],
            ),
            curves(
                "Devices",
                "What traced processes have from the driver, by device.",
                "bytes",
                &[
                    line(
                        r#"memscope_device_held_bytes{instance=~"$instance"}"#,
                        "{{instance}} {{hw_vendor}} {{hw_id}} held",
                    ),
                    line(
                        r#"hw_gpu_memory_usage_bytes{instance=~"$instance"}"#,
                        "{{instance}} {{hw_vendor}} {{hw_id}} used by all",
                    ),
                    line(
                        r#"hw_gpu_memory_limit_bytes{instance=~"$instance"}"#,
                        "{{instance}} {{hw_vendor}} {{hw_id}} size",
                    ),
                ],
            ),
            table(
                "What leaks",
                "Lines of programs that are known to keep more and more memory, with their growth in a second.",
                "binBps",
                &[line(
                    r#"sort_desc(memscope_finding_growth_bytes_per_second{instance=~"$instance"})"#,
                    "",
                )],
            ),
            table(
                "Processes",
                "Who is traced.",
                "none",
                &[line(r#"memscope_process{instance=~"$instance"}"#, "")],
            ),
            curves(
                "Out of memory",
                "Allocations that failed within the last five minutes.",
                "none",
                &[line(
                    r#"(memscope_out_of_memory_total{instance=~"$instance"} - ((last_over_time(memscope_out_of_memory_total{instance=~"$instance"}[1h] offset 5m) <= memscope_out_of_memory_total{instance=~"$instance"}) unless resets(memscope_out_of_memory_total{instance=~"$instance"}[5m]) > 0) or memscope_out_of_memory_total{instance=~"$instance"}) > 0"#,
                    "{{instance}} {{program}} {{pid}} dev {{device}}",
                )],
            ),
            curves(
                "Not used of what is reserved",
                "Fragmentation of each process's pool.",
                "percentunit",
                &[line(
                    r#"memscope_fragmentation_ratio{instance=~"$instance"}"#,
                    "{{instance}} {{program}} {{pid}} dev {{device}}",
                )],
            ),
            curves(
                "Cost: processor",
                "Processors that memscoped takes.",
                "none",
                &[line(
                    r#"rate(memscope_daemon_cpu_seconds_total{instance=~"$instance"}[$__rate_interval])"#,
                    "{{instance}}",
                )],
            ),
            curves(
                "Cost: memory",
                "Memory of memscoped.",
                "bytes",
                &[line(
                    r#"memscope_daemon_memory_bytes{instance=~"$instance"}"#,
                    "{{instance}}",
                )],
            ),
            curves(
                "Lost records",
                "Records that were lost in a second, because the ring was full.",
                "cps",
                &[line(
                    r#"sum by (instance) (rate(memscope_dropped_records_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{instance}}",
                )],
            ),
        ],
    },
    Dashboard {
        file: "job",
        title: "memscope: jobs",
        description: "The ranks of the chosen jobs beside one another.",
        variables: &["job_id"],
        panels: &[
            curves(
                "Peak by rank",
                "Largest allocated bytes since the attach. A rank apart from the others is the odd one.",
                "bytes",
                &[line(
                    r#"sum by (job_id, rank, instance) (memscope_peak_allocated_bytes{job_id=~"$job_id"})"#,
                    RANK,
                )],
            ),
            curves(
                "Allocated by rank",
                "Bytes that are handed out now.",
                "bytes",
                &[line(
                    r#"sum by (job_id, rank, instance) (memscope_allocated_bytes{job_id=~"$job_id"})"#,
                    RANK,
                )],
            ),
            curves(
                "Step time by rank",
                "Median duration of the last steps.",
                "s",
                &[line(
                    r#"memscope_step_time_seconds{job_id=~"$job_id"}"#,
                    RANK,
                )],
            ),
            curves(
                "Growth by rank",
                "What lines that are known to leak keep more in a second.",
                "binBps",
                &[line(
                    r#"memscope_growth_bytes_per_second{job_id=~"$job_id"}"#,
                    RANK,
                )],
            ),
            curves(
                "Above the median of the job",
                "How far a rank's peak is above the median of all ranks, as a part of it.",
                "percentunit",
                &[line(
                    r#"sum by (job_id, rank, instance) (memscope_peak_allocated_bytes{job_id=~"$job_id"}) / on (job_id) group_left () memscope:job_peak_allocated_bytes:median - 1"#,
                    RANK,
                )],
            ),
            curves(
                "The job as a whole",
                "All ranks together.",
                "bytes",
                &[
                    line(
                        r#"memscope:job_allocated_bytes:sum{job_id=~"$job_id"}"#,
                        "{{job_id}} allocated",
                    ),
                    line(
                        r#"memscope:job_reserved_bytes:sum{job_id=~"$job_id"}"#,
                        "{{job_id}} reserved",
                    ),
                ],
            ),
        ],
    },
    Dashboard {
        file: "rank",
        title: "memscope: one rank",
        description: "Everything about one process.",
        variables: &["instance", "pid"],
        panels: &[
            curves(
                "Memory",
                "Allocated and reserved bytes, and their peaks.",
                "bytes",
                &[
                    line(
                        r#"memscope_allocated_bytes{instance=~"$instance",pid=~"$pid"}"#,
                        "dev {{device}} allocated",
                    ),
                    line(
                        r#"memscope_reserved_bytes{instance=~"$instance",pid=~"$pid"}"#,
                        "dev {{device}} reserved",
                    ),
                    line(
                        r#"memscope_peak_allocated_bytes{instance=~"$instance",pid=~"$pid"}"#,
                        "dev {{device}} peak",
                    ),
                    line(
                        r#"memscope_baseline_bytes{instance=~"$instance",pid=~"$pid"}"#,
                        "dev {{device}} from before the attach",
                    ),
                ],
            ),
            curves(
                "Steps",
                "Steps in a second, as they were made.",
                "none",
                &[line(
                    r#"memscope:steps:rate1m{instance=~"$instance",pid=~"$pid"}"#,
                    "{{program}}",
                )],
            ),
            table(
                "What leaks",
                "Its lines that are known to keep more and more memory, with what they keep.",
                "bytes",
                &[line(
                    r#"memscope_finding_live_bytes{instance=~"$instance",pid=~"$pid"}"#,
                    "",
                )],
            ),
            table(
                "What limits the numbers",
                "Notes about what these numbers do not show.",
                "none",
                &[line(
                    r#"memscope_coverage{instance=~"$instance",pid=~"$pid"}"#,
                    "",
                )],
            ),
            curves(
                "Time until the device is full",
                "At the growth of what is known to leak.",
                "s",
                &[line(
                    r#"memscope_to_full_seconds{instance=~"$instance",pid=~"$pid"}"#,
                    "dev {{device}}",
                )],
            ),
            curves(
                "Allocations",
                "Blocks that are handed out in a second.",
                "none",
                &[line(
                    r#"rate(memscope_allocations_total{instance=~"$instance",pid=~"$pid"}[$__rate_interval])"#,
                    "dev {{device}}",
                )],
            ),
        ],
    },
];
