"""What every model shares: settings, errors, codecs, the gateway to Triton, the registry."""
