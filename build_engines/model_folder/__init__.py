"""What a model's folder holds: config.pbtxt, build.json, labels; how it is checked, published and read again."""
