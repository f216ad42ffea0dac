package sidekeeper

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// leaseLookInterval is the longest time between two looks at the clock: timers stand still while the machine sleeps.
const leaseLookInterval = time.Second

// lease is until when the sidecar's session is surely alive, as far as it has said.
//
// A sidecar that is itself stopped, or gets no time to run, cannot say that its session is lost. Therefore it says now
// and then how long the session may be acted on, and an application that hears nothing newer stops by itself when that
// is over. Its methods need the lock, with which ended is called.
type lease struct {
	lock  sync.Locker
	ended func()
	until time.Duration
	known bool
	timer *time.Timer
	// Counts what was told, so that a timer that has fired already knows that it is an old one.
	told int
}

func newLease(lock sync.Locker, ended func()) *lease {
	return &lease{lock: lock, ended: ended}
}

// tell takes what the sidecar has just said; nil: that no end is known.
func (l *lease) tell(remaining *durationpb.Duration) {
	l.close()
	if remaining != nil {
		l.known, l.until = true, boottime()+remaining.AsDuration()
		l.look()
	}
}

// left returns how long it lasts without newer word. False: no end is known.
func (l *lease) left() (time.Duration, bool) {
	return max(0, l.until-boottime()), l.known
}

// close forgets what the sidecar has said.
func (l *lease) close() {
	l.known = false
	l.told++
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

func (l *lease) look() {
	left := l.until - boottime()
	if left <= 0 {
		l.close()
		l.ended()
		return
	}
	told := l.told
	l.timer = time.AfterFunc(min(left, leaseLookInterval), func() {
		l.lock.Lock()
		defer l.lock.Unlock()
		if l.known && l.told == told {
			l.look()
		}
	})
}
