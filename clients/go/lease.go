package sidekeeper

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// leaseLookInterval is the longest time between two looks at the clock: timers stand still while the machine sleeps.
const leaseLookInterval = time.Second

// lease is the time until which the sidecar's session is surely alive.
//
// A suspended sidecar cannot report that its session is lost. Therefore it sends a lease regularly, and an application
// that reads no newer lease stops by itself when the lease ends. A suspended application reads messages late, and would
// count from then: therefore the sidecar also sends the end of the lease on a clock that both read. An application that
// shares no clock with the sidecar asks for the lease, and counts from its request (see renewer). The methods need the
// lock, with which ended is called. docs/lease.md has the whole.
type lease struct {
	lock  sync.Locker
	ended func()
	until time.Duration
	known bool
	over  bool
	// Whether the lease is that of an answer, rather than of the stream.
	proven bool
	timer  *time.Timer
	// Counts the leases, so that a timer that has already fired knows that it is an old one.
	told int
}

func newLease(lock sync.Locker, ended func()) *lease {
	return &lease{lock: lock, ended: ended}
}

// tell takes a lease of the stream; nil: no end is known. It is sure if it holds even if the message has waited to be
// read; if not, an answer (prove) is better. It returns whether the lease lasts.
func (l *lease) tell(remaining *time.Duration, sure bool) bool {
	if l.over && remaining != nil && *remaining <= 0 {
		return false // an old message, like the one before
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

// prove takes an answer: from when the request was sent, by boottime, the lease lasts so long; zero: it has ended, nil:
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
		until = max(until, l.until) // a later answer does not shorten a proven lease
	}
	if l.over && until <= boottime() {
		return false // it was read late
	}
	l.close()
	l.proven, l.known, l.until = true, true, until
	l.wait()
	return !l.over
}

// look checks the clock, because timers may be late. It returns whether the lease has ended without a newer one.
func (l *lease) look() bool {
	if l.known && boottime() >= l.until {
		proven := l.proven
		l.close()
		l.over, l.proven = true, proven
		l.ended()
	}
	return l.over
}

// left returns how long it lasts. False: no end is known, or its end was reported already.
func (l *lease) left() (time.Duration, bool) {
	return max(0, l.until-boottime()), l.known
}

// close forgets the lease.
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

// leaseMessage is a message with the end of a lease.
type leaseMessage interface {
	GetRemainingLease() *durationpb.Duration
	GetLeaseEndBoottimeNs() uint64
	GetBoottimeClock() string
}

// remainingLease returns how long the lease of a message lasts from now on; nil: no end is known. It is the message's
// remaining lease, or the rest of it by the clock that both processes read, if that is less.
func remainingLease(message leaseMessage) *time.Duration {
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

// sharesClock returns whether a message has the end of the lease on a clock that this process reads, too.
func sharesClock(message leaseMessage) bool {
	clock := boottimeClock()
	return message.GetLeaseEndBoottimeNs() > 0 && clock != "" && clock == message.GetBoottimeClock()
}

// leftUntil returns how far ahead a time of boottime is, in nanoseconds, or behind.
func leftUntil(end uint64) time.Duration {
	const century = 100 * 365 * 24 * time.Hour
	return time.Duration(min(end, uint64(century))) - boottime()
}
