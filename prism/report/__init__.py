"""How a run is shown and kept: terminal tables, the HTML page, JSON records and the output folder.

Needs only `prism.events` and `prism.errors`, so that both the API and the command line may use it.
"""
