"""A model without a language model that plays a mediocre language model: it is sloppy, varied, and it lies.

What it says and does is drawn from seeds, and `truth_of` says afterwards which answers are untrue, in which
sentence and what would have been true. Read `mediocre_model` first. `wants` has its requests and the calls for
them, `observations` what can be said about results, `remarks` what is said and how it becomes untrue, and
`composition` the answer. The words, requests and mock tools are data in `texts/`, in a split that is called `held`.
Another split is a folder with the same files; `benchmarks/texts` has some, which share no text.
"""
