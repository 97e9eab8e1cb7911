"""What lies on disk and whether it fits this machine. PID 1 imports layout, facts and links; others take protobuf."""
