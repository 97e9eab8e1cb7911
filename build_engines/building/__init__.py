"""One model from --weights to its published folder: family, engine, configuration, record."""
