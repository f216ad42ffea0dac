// Contenders for the lock of go-zookeeper, for the interoperability tests.
module github.com/sidekeeper/sidekeeper/tests/interop/lock-peer

go 1.24.0

require (
	github.com/go-zookeeper/zk v1.0.4
	golang.org/x/sys v0.40.0
)
