"""The `prefixcache` command. One module per subcommand, each with `add_parser` and `run`."""
