"""Launch plans, health and servers of the engines."""
