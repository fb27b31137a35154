"""Formats of snapshots, with how names of their files end. Made from proto/src/formats.rs by its tests; do not edit."""

FORMATS = {
    "memory-viz": ".pickle",
    "perfetto": ".perfetto-trace",
    "html": ".html",
    "json": ".json",
    "memory-viz-json": ".json",
}
