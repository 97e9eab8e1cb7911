"""Which instances, threads and batching serve a model best here, measured through tritonserver."""
