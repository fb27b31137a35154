// The texts of a device's tiles. Totals are of the whole snapshot, even where only a part of it is drawn.

function tiles(device, data) {
  const { reserved, allocated, pending, free, idle, largest_free: largest, segments, blocks } = device.totals;
  const peak = device.levels[1].reduce((a, b) => Math.max(a, b), 0);
  const rows = [
    ["Handed out (rounded)", bytesText(allocated)],
    ["Reserved in segments", bytesText(reserved)],
    ["Freed, still in use", bytesText(pending)],
    ["Free room in segments", bytesText(free)],
    ["of it whole segments", bytesText(idle)],
    ["Largest free block", bytesText(largest)],
    ["Fragmentation", free ? `${((1 - largest / free) * 100).toFixed(1)} %` : "none"],
    [`Peak in the trace (${device.reserved_at_end ? "rounded" : "requested"})`, data.lost_records ? "not known: records were lost" : device.from < data.as_of ? bytesText(peak) : "not known"],
  ];
  const shown = device.segments.reduce((sum, segment) => sum + segment.blocks[0].length, 0);
  const bytes = device.segments.reduce((sum, segment) => sum + segment.size, 0);
  const whole = device.segments.length === segments;
  const drawn = whole
    ? segments === 1 ? "The one segment is drawn." : `All ${segments.toLocaleString("en")} segments are drawn.`
    : `Drawn are ${device.segments.length.toLocaleString("en")} of ${countText(segments, "segment", "segments")}: ${bytesText(bytes)} of ${bytesText(reserved)}, ${shown.toLocaleString("en")} of ${countText(blocks, "piece", "pieces")}. The numbers above are of all.`;
  return { rows, peak, reserved, drawn };
}
