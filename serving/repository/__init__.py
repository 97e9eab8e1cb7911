"""What lies on disk and whether it fits this machine. PID 1 imports layout and facts only; others take protobuf."""
