"""Files and batches: requests that wait for idle capacity, asked by Forebay itself."""
