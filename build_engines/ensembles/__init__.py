"""Models of Triton's that call others, one module each: which parts they have and how those are connected."""
