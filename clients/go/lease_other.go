//go:build !linux

package sidekeeper

import "time"

// boottime returns a clock that continues while the machine sleeps, where Go's does.
func boottime() time.Duration {
	return time.Since(start)
}

var start = time.Now()

// boottimeClock returns which clock boottime reads, as the sidecar names it: none that other processes read.
func boottimeClock() string { return "" }
