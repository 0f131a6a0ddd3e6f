"""The only SQL of the product: tables, one store per aggregate, unit of work, blobs."""
