"""Commands that run isolated with bubblewrap.

`host` keeps a folder for each run and says whether commands can be isolated on this machine. `execution` runs
one command, `process_family` and `socket_memory` are about its processes and limits, `bubblewrap` and `seccomp`
about what they may reach, `images` about those that see the content of an image in place of the system's.
`run_folder` writes a run's files to disk and reads them back, `untrusted` walks folders that a command wrote,
and `home` is where the folders are.
"""
