"""One request to one model: registry, clients, decoding, batches, streams. Knows nothing of HTTP."""
