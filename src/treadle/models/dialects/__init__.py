"""One folder for each wire format, with the modules `request`, `answer` and `stream`."""
