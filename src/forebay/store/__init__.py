"""Where rows rest: one database behind SQLAlchemy Core, and its numbered migrations."""
