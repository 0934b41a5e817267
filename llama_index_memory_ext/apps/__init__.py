"""The programs of the package: command line, inspector, MCP server and demo. They use the public names only."""
