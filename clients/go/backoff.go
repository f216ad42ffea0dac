package sidekeeper

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// backoffBase is the first wait: a sidecar that restarts is back within a second.
	backoffBase = 100 * time.Millisecond
	// backoffCap is the longest wait: nobody waits longer than this for a sidecar that is back.
	backoffCap = 5 * time.Second
)

// backoff gives waits that double from the base to the cap, each shortened by up to half at random: the workers of a
// machine do not come back in step.
type backoff struct {
	following time.Duration
}

func newBackoff() *backoff {
	return &backoff{following: backoffBase}
}

// next returns the next wait, and doubles the one after it.
func (b *backoff) next() time.Duration {
	wait := b.following
	b.following = min(backoffCap, wait*2)
	return wait/2 + rand.N(wait/2+1)
}

// reset begins at the base again.
func (b *backoff) reset() {
	b.following = backoffBase
}

// pause waits so long, or until the context is done, which is its error.
func pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
