"""The one place that knows everybody: configuration, wiring, processes."""
