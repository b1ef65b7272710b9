-- The end of every run: one JSON line with what `measure.Load` holds.
-- wrk counts an answer of 400 and above as errors.status; latencies are microseconds.
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '{"requests": %d, "duration_s": %.6f, "p50_ms": %.3f, "p99_ms": %.3f, "errors": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    e.connect + e.read + e.write + e.status + e.timeout))
end
