"""Translation over HTTP: requests that arrive together are batched, and a page shows the model's attention."""
