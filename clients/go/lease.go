package sidekeeper

import (
	"sync"
	"time"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// leaseLookInterval is the longest time between two looks at the clock: timers stand still while the machine sleeps.
const leaseLookInterval = time.Second

// lease is until when the sidecar's session is surely alive, as far as it has said.
//
// A sidecar that is itself stopped, or gets no time to run, cannot say that its session is lost. Therefore it says now
// and then how long the session may be acted on, and an application that hears nothing newer stops by itself when that
// is over. An application that is itself stopped reads late what it was told, and would count from then: therefore the
// sidecar says also when that is, on a clock that both read. An application that shares no clock with it asks, and
// counts from when it has asked (see renewer). Its methods need the lock, with which ended is called.
type lease struct {
	lock  sync.Locker
	ended func()
	until time.Duration
	known bool
	over  bool
	// Whether an answer has said how long it lasts, or lasted, rather than the stream.
	proven bool
	timer  *time.Timer
	// Counts what was told, so that a timer that has fired already knows that it is an old one.
	told int
}

func newLease(lock sync.Locker, ended func()) *lease {
	return &lease{lock: lock, ended: ended}
}

// tell takes what the stream says; nil: that no end is known. It is sure if it is so however long the word has waited to
// be read; if not, an answer (prove) says more. It returns whether the lease lasts.
func (l *lease) tell(remaining *time.Duration, sure bool) bool {
	if l.over && remaining != nil && *remaining <= 0 {
		return false // old, like the word before
	}
	if l.proven && !sure && remaining != nil {
		return !l.look()
	}
	l.close()
	if remaining != nil {
		l.known, l.until = true, boottime()+*remaining
		l.wait()
	}
	return !l.over
}

// prove takes an answer: from when the request was sent, by boottime, the lease lasts so long; zero: it is over now, nil:
// no end is known. It returns whether the lease lasts.
func (l *lease) prove(remaining *time.Duration, sent time.Duration) bool {
	l.look()
	if remaining == nil {
		l.close()
		return true
	}
	until := sent + *remaining
	switch {
	case *remaining <= 0 && !l.known:
		return false // it is over already, or the stream has said that the session is lost
	case *remaining <= 0:
		until = boottime()
	case l.proven && l.known:
		until = max(until, l.until) // what an answer has proven another one does not take back
	}
	if l.over && until <= boottime() {
		return false // it was read late
	}
	l.close()
	l.proven, l.known, l.until = true, true, until
	l.wait()
	return !l.over
}

// look looks at the clock, which timers may be late for. It returns whether the lease is over without newer word.
func (l *lease) look() bool {
	if l.known && boottime() >= l.until {
		proven := l.proven
		l.close()
		l.over, l.proven = true, proven
		l.ended()
	}
	return l.over
}

// left returns how long it lasts without newer word. False: no end is known, or it has been told already.
func (l *lease) left() (time.Duration, bool) {
	return max(0, l.until-boottime()), l.known
}

// close forgets what the sidecar has said.
func (l *lease) close() {
	l.known, l.over, l.proven = false, false, false
	l.told++
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

func (l *lease) wait() {
	if l.look() {
		return
	}
	told := l.told
	l.timer = time.AfterFunc(min(max(0, l.until-boottime()), leaseLookInterval), func() {
		l.lock.Lock()
		defer l.lock.Unlock()
		if l.known && l.told == told {
			l.wait()
		}
	})
}

// remainingLease returns how long the lease lasts that a message tells, from now on; nil: no end is known. It is what
// remained when it was told, or what remains of it by the clock that both processes read, if that is less.
func remainingLease(message *sidekeeperv1.SessionChanged) *time.Duration {
	if message.GetRemainingLease() == nil {
		return nil
	}
	remaining := message.GetRemainingLease().AsDuration()
	if sharesClock(message) {
		remaining = min(remaining, leftUntil(message.GetLeaseEndBoottimeNs()))
	}
	remaining = max(0, remaining)
	return &remaining
}

// sharesClock returns whether a message tells the lease's end on a clock that this process reads, too.
func sharesClock(message *sidekeeperv1.SessionChanged) bool {
	clock := boottimeClock()
	return message.GetLeaseEndBoottimeNs() > 0 && clock != "" && clock == message.GetBoottimeClock()
}

// leftUntil returns how far ahead a time of boottime is, in nanoseconds, or behind.
func leftUntil(end uint64) time.Duration {
	const century = 100 * 365 * 24 * time.Hour
	return time.Duration(min(end, uint64(century))) - boottime()
}
