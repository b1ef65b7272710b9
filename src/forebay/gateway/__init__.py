"""The data plane: admit, route, attempt, and the wire."""
