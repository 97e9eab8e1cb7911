"""/openapi.json: what the routes take and give, described from what checks it."""
