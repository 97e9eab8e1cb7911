"""One module or folder for each server that is compared; bench.peer_table lists them."""
