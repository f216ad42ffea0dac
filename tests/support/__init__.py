"""The modules that the Python suites share: processes, ZooKeeper servers, sidecars, applications, a job's nodes in ZooKeeper."""
