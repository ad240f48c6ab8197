"""What a user types: the command line, the runner of YAML files, the remote client and the demo."""
