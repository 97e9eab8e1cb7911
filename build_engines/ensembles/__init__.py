"""Models of Triton that call other models, one module each: their parts, and how those are connected."""
