"""Serves model folders that change while the rest goes on (SERVE_RELOAD): a process of its own, beside the workers."""
