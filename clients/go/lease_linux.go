package sidekeeper

import (
	"time"

	"golang.org/x/sys/unix"
)

// boottime returns a clock that goes on while the machine sleeps.
func boottime() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Since(start)
	}
	return time.Duration(now.Nano())
}

var start = time.Now()
