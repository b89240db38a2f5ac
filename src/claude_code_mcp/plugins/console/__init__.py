"""The console: a person's side in a browser, over HTTP and on the service; and push to where the person is."""
