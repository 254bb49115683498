"""The `easyscale` command: one file a command group. Imports torch nowhere; heavy imports inside commands."""
