"""From weights to an fp32 model in a folder, one module per kind of network; what needs torch is
imported late."""
