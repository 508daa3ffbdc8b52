"""What the dialects share: requests and answers over HTTP, streams, errors, prices."""
