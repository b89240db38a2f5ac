"""The console: a web page for people."""
