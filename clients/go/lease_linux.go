package sidekeeper

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// boottime returns a clock that continues while the machine sleeps.
func boottime() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Since(start)
	}
	return time.Duration(now.Nano())
}

var start = time.Now()

// boottimeClock returns which clock boottime reads, as the sidecar names it (kernel and time namespace). Empty: unknown.
var boottimeClock = sync.OnceValue(func() string {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return ""
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	boot := strings.TrimSpace(string(id))
	if err != nil || boot == "" {
		return ""
	}
	namespace, err := os.Readlink("/proc/self/ns/time")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // if there is none, the kernel has no such namespaces
		return ""
	}
	return boot + "/" + namespace
})
