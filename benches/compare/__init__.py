"""ElasticJob and sidecars by turns, on one ZooKeeper server: what each needs for the same work (`make compare`)."""
