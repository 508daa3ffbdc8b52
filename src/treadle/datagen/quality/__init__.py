"""Quality: filters over finished samples, and the search for duplicates.

`protocol` says what a filter is, `registry` has the filters by name, and `pipeline` runs them from the cheapest
to the costliest. `filters/` has one file for each group of filters. `duplicates` compares a row with all rows
before it by their `signatures`. `exchanges` and `languages` are what filters share; `words.toml` has their words.

In `statements/`, `statements` takes an answer apart, `evidence` has the records of what was seen before it, and
`support` the rules by which one is held against the other. In `figures/`, `figure_reader` alone reads figures, by
the words of `quantities.toml`; a written form that it does not know is added there. `grounding.toml` has the words
of the rules.

A filter is a class with its settings as a class, and a line in `FILTERS` or an entry point of the group
`treadle.filters`; a configuration may also name a class by its file. Its docstring says what a kept row
fulfils. One that is derived from `BuiltinFilter` is on by default. `cost` decides when it runs. An error of a
server is raised, and does not reject the sample.
"""
