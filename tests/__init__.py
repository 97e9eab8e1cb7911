"""Makes tests a package, because other distributions install a package of the same name."""
