"""One request to one model: decoding, batches, streams. Knows nothing of HTTP."""
