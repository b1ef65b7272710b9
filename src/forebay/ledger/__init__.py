"""What happened: segments, ingest, rollups."""
